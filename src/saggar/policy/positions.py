"""On which line does each key of a TOML text stand? `tomllib` does not say.

I1  For every text that `tomllib` accepts, the paths found are exactly those of its result.
I2  For any other text: some mapping or `ValueError`, in time linear in its length.

A path is a tuple of keys and array indices: `("egress", "allow", 2, "host")`. Lines count from 1.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = tuple[str | int, ...]

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}


def positions(source: str) -> dict[Path, int]:
    """Path to line, for every table, array element and value of `source`."""
    finder = _Finder(source.replace("\r\n", "\n"))
    finder.document()
    return finder.found


class _Finder:
    __slots__ = ("_at", "_counts", "_line", "_seen_to", "_text", "found")

    def __init__(self, source: str) -> None:
        self._text = source
        self._at = 0
        self._line = 1
        self._seen_to = 0
        self._counts: dict[Path, int] = {}
        self.found: dict[Path, int] = {}

    def document(self) -> None:
        table: Path = ()
        while True:
            self._blanks(newlines=True)
            if self._at >= len(self._text):
                return
            if self._peek("[["):
                table = self._array_header()
            elif self._peek("["):
                table = self._header()
            else:
                self._pair(table)

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def _char(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _expect(self, token: str) -> None:
        if not self._peek(token):
            raise ValueError(f"expected `{token}`")
        self._at += len(token)

    def _here(self) -> int:
        """The current line; each character is counted once."""
        self._line += self._text.count("\n", self._seen_to, self._at)
        self._seen_to = self._at
        return self._line

    def _blanks(self, *, newlines: bool) -> None:
        skip = " \t\n" if newlines else " \t"
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "#" and newlines:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in skip:
                self._at += 1
            else:
                return

    def _header(self) -> Path:
        line = self._here()
        self._expect("[")
        path = self._resolve(self._keys("]"), line)
        self._expect("]")
        self._note(path, line)
        self._end_of_line()
        return path

    def _array_header(self) -> Path:
        line = self._here()
        self._expect("[[")
        keys = self._keys("]")
        self._expect("]]")
        array = (*self._resolve(keys[:-1], line), keys[-1])
        index = self._counts.get(array, 0)
        self._counts[array] = index + 1
        self._note(array, line)
        path = (*array, index)
        self._note(path, line)
        self._end_of_line()
        return path

    def _resolve(self, keys: list[str], line: int) -> Path:
        """Keys to a path: through an array of tables, the way goes into its last element."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            self._note(path, line)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        return path

    def _note(self, path: Path, line: int) -> None:
        self.found.setdefault(path, line)

    def _end_of_line(self) -> None:
        self._blanks(newlines=False)
        if self._char() not in {"", "\n", "#"}:
            raise ValueError("expected the end of the line")

    def _pair(self, table: Path) -> None:
        self._member(table)
        self._end_of_line()

    def _member(self, table: Path) -> None:
        line = self._here()
        path = table
        for key in self._keys("="):
            path = (*path, key)
            self._note(path, line)
        self._expect("=")
        self._blanks(newlines=False)
        self._value(path)

    def _keys(self, stop: str) -> list[str]:
        keys = []
        while True:
            self._blanks(newlines=False)
            keys.append(self._key())
            self._blanks(newlines=False)
            if self._char() == stop:
                return keys
            self._expect(".")

    def _key(self) -> str:
        if self._char() in {'"', "'"}:
            return self._line_string()
        start = self._at
        while self._char() in _BARE and self._at < len(self._text):
            self._at += 1
        if self._at == start:
            raise ValueError("expected a key")
        return self._text[start : self._at]

    def _value(self, path: Path) -> None:
        char = self._char()
        if self._peek('"""') or self._peek("'''"):
            self._block_string()
        elif char in {'"', "'"}:
            self._line_string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            self._scalar()

    def _scalar(self) -> None:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ",]}#\n":
            self._at += 1
        if not self._text[start : self._at].strip():
            raise ValueError("expected a value")

    def _array(self, path: Path) -> None:
        self._expect("[")
        index = 0
        while True:
            self._blanks(newlines=True)
            if self._char() == "]":
                break
            element = (*path, index)
            self._note(element, self._here())
            self._value(element)
            index += 1
            self._blanks(newlines=True)
            if self._char() != ",":
                break
            self._at += 1
        self._expect("]")

    def _inline_table(self, path: Path) -> None:
        self._expect("{")
        self._blanks(newlines=True)
        while self._char() != "}":
            self._member(path)
            self._blanks(newlines=True)
            if self._char() != ",":
                break
            self._at += 1
            self._blanks(newlines=True)
        self._expect("}")

    def _line_string(self) -> str:
        quote = self._char()
        self._at += 1
        out: list[str] = []
        while True:
            char = self._char()
            if not char or char == "\n":
                raise ValueError("a string without its end")
            self._at += 1
            if char == quote:
                return "".join(out)
            out.append(self._escape() if char == "\\" and quote == '"' else char)

    def _escape(self) -> str:
        char = self._char()
        self._at += 1
        width = {"x": 2, "u": 4, "U": 8}.get(char)
        if width is None:
            if char not in _ESCAPES:
                raise ValueError("an unknown escape")
            return _ESCAPES[char]
        digits = self._text[self._at : self._at + width]
        self._at += width
        return chr(int(digits, 16))

    def _block_string(self) -> None:
        quote = self._text[self._at : self._at + 3]
        self._at += 3
        while not self._peek(quote):
            if self._at >= len(self._text):
                raise ValueError("a string without its end")
            self._at += 2 if self._char() == "\\" and quote == '"""' else 1
        self._at += 3
        # one or two quotes may stand right before the closing three
        for _ in range(2):
            if self._char() == quote[0]:
                self._at += 1
