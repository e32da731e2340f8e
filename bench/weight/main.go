// The heavier pair for bench/egress.py: an ordinary server and an ordinary client of Go's standard library, over TLS.
//
//	weight serve PORT CERT.pem BULK_BYTES
//	weight load [-proxy URL] [-c N] [-s SECONDS] [-close] [-header "Name: value"] [-bulk [-digest] | -stream] URL
//
// `load` prints one line of JSON: rate (requests a second, or MB a second), p50 and p99 in ms, requests.
package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const name = "api.allowed.test"

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(port, pem string, bulk int64) {
	piece := make([]byte, 1<<20)
	_, err := rand.Read(piece)
	must(err)
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello, upstream\n")
	})
	mux.HandleFunc("/bulk", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.FormatInt(bulk, 10))
		for left := bulk; left > 0; left -= int64(len(piece)) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; i < 3; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	server := &http.Server{
		Addr: "127.0.0.1:" + port, Handler: mux,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/1.1, as through every way here
		TLSConfig:    &tls.Config{SessionTicketsDisabled: true},
	}
	must(server.ListenAndServeTLS(pem, pem))
}

// get asks once and gives the bytes of the answer's body, and when the first of them came. They are written to sink.
func get(client *http.Client, target, field string, buffer []byte, sink io.Writer) (int64, time.Duration) {
	request, err := http.NewRequest("GET", target, nil)
	must(err)
	if key, value, found := strings.Cut(field, ": "); found {
		request.Header.Set(key, value)
	}
	began := time.Now()
	answer, err := client.Do(request)
	must(err)
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		must(errors.New(answer.Status))
	}
	count, err := answer.Body.Read(buffer)
	first, total := time.Since(began), int64(count)
	for err == nil {
		sink.Write(buffer[:count])
		count, err = answer.Body.Read(buffer)
		total += int64(count)
	}
	if err != io.EOF {
		must(err)
	}
	sink.Write(buffer[:count])
	return total, first
}

func load(arguments []string) {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	proxy := flags.String("proxy", "", "go through this proxy's CONNECT")
	connections := flags.Int("c", 1, "connections at once")
	seconds := flags.Float64("s", 1, "how long")
	once := flags.Bool("close", false, "a connection for each request")
	field := flags.String("header", "", "a field of each request")
	bulk := flags.Bool("bulk", false, "one download; the rate is MB a second")
	digest := flags.Bool("digest", false, "take the download's SHA-256, as package managers do")
	stream := flags.Bool("stream", false, "time to the first event")
	must(flags.Parse(arguments))
	target := flags.Arg(0)
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true, ServerName: name},
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: *connections, DisableKeepAlives: *once, DisableCompression: true,
		ReadBufferSize: 64 << 10,
	}
	if *proxy != "" {
		through, err := url.Parse(*proxy)
		must(err)
		transport.Proxy = http.ProxyURL(through)
	}
	client := &http.Client{Transport: transport}
	buffer := make([]byte, 256<<10)
	sink := io.Discard
	if *bulk || *stream {
		get(client, strings.NewReplacer("/bulk", "/small", "/events", "/small").Replace(target), *field, buffer, sink)
		if *digest {
			sink = sha256.New()
		}
		began := time.Now()
		total, first := get(client, target, *field, buffer, sink)
		rate := float64(total) / 1e6 / time.Since(began).Seconds()
		say(rate, []time.Duration{first})
		return
	}
	var mutex sync.Mutex
	var group sync.WaitGroup
	var times []time.Duration
	began := time.Now()
	stop := began.Add(time.Duration(*seconds * float64(time.Second)))
	for range *connections {
		group.Add(1)
		go func() {
			defer group.Done()
			mine := make([]byte, 4096)
			var took []time.Duration
			for start := time.Now(); start.Before(stop); start = time.Now() {
				get(client, target, *field, mine, sink)
				took = append(took, time.Since(start))
			}
			mutex.Lock()
			times = append(times, took...)
			mutex.Unlock()
		}()
	}
	group.Wait()
	say(float64(len(times))/time.Since(began).Seconds(), times)
}

func say(rate float64, times []time.Duration) {
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	ms := func(part int) float64 { return times[len(times)*part/100].Seconds() * 1e3 }
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"rate": rate, "p50_ms": ms(50), "p99_ms": ms(99), "requests": len(times),
	}))
}

func main() {
	if len(os.Args) == 5 && os.Args[1] == "serve" {
		bulk, err := strconv.ParseInt(os.Args[4], 10, 64)
		must(err)
		serve(os.Args[2], os.Args[3], bulk)
	}
	load(os.Args[2:])
}
