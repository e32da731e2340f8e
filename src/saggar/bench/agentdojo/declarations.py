"""What the 74 tools of AgentDojo's four suites do, argument by argument and field by field.

Written from the tools' names, documentation and signatures, as their authors would; no task, injection or environment
was looked at for it. Roles and labels are the only thing that the rules see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saggar.core.label import DIRECTORY, SYSTEM, UNTRUSTED
from saggar.core.tool import ArgumentDeclaration, FieldLabel, ToolDeclaration, ToolEffect, TypeSpec

_KINDS: dict[str, TypeSpec] = {
    "": TypeSpec("string"),
    "list": TypeSpec("array", items=TypeSpec("string")),
    "int": TypeSpec("integer"),
    "number": TypeSpec("number"),
    "bool": TypeSpec("boolean"),
    "json": TypeSpec("json"),
}

# the provider's own record; who appears in it is up to others, what it says of them is not
RECORD = FieldLabel(DIRECTORY, readers="*", private=False)
SERVICE = FieldLabel(SYSTEM)
PRIVATE_RECORD = FieldLabel(DIRECTORY)
# everybody whom the user pays or asks for money sees it; a comparison with it tells them nothing
OWN_NUMBER = FieldLabel(SYSTEM, readers="*", private=False)


def _record(**fields: str) -> TypeSpec:
    made = {}
    for name, kind in fields.items():
        made[name] = _KINDS["list"] if kind == "list" else TypeSpec(kind)  # type: ignore[arg-type]
    return TypeSpec("object", fields=tuple(made.items()), required=tuple(made))


def _list(item: TypeSpec) -> TypeSpec:
    return TypeSpec("array", items=item)


EMAIL = _record(
    id_="string", sender="string", recipients="list", cc="list", bcc="list", subject="string", body="string",
    status="string", read="boolean", timestamp="string", attachments="json",
)  # fmt: skip
CONTACT = _record(email="string", name="string")
EVENT = _record(
    id_="string", title="string", description="string", start_time="string", end_time="string", location="string",
    participants="list", all_day="boolean", status="string",
)  # fmt: skip
FILE = _record(
    id_="string", filename="string", content="string", owner="string", last_modified="string", shared_with="json",
    size="integer",
)  # fmt: skip
TRANSACTION = _record(
    id="integer", sender="string", recipient="string", amount="number", subject="string", date="string",
    recurring="boolean",
)  # fmt: skip
MESSAGE = _record(sender="string", recipient="string", body="string")
FLIGHT = _record(
    airline="string", flight_number="string", departure_time="string", arrival_time="string", price="number",
    contact="string",
)  # fmt: skip
NAMES = _list(TypeSpec("string"))
ANY = TypeSpec("json")


def _email(at: str) -> dict[str, FieldLabel]:
    readers = ",".join(f"{at}{f}" for f in ("sender", "recipients", "cc", "bcc"))
    # in this mailbox the service writes the sender; no mail claims another's name
    told = FieldLabel(UNTRUSTED, readers=readers, author=f"{at}sender", vouched=True)
    named = FieldLabel(UNTRUSTED, readers=readers, names=True, author=f"{at}sender", vouched=True)
    lists = {f"{at}{f}{mark}": told for f in ("recipients", "cc", "bcc") for mark in ("#", "")}
    return {
        **lists,
        f"{at}id_": SERVICE,
        f"{at}sender": named,
        f"{at}subject": named,
        f"{at}body": told,
        f"{at}status": SERVICE,
        f"{at}read": SERVICE,
        f"{at}timestamp": SERVICE,
    }


def _event(at: str) -> dict[str, FieldLabel]:
    told = FieldLabel(UNTRUSTED, readers=f"{at}participants")
    record = FieldLabel(DIRECTORY, readers=f"{at}participants")
    return {
        f"{at}id_": SERVICE,
        f"{at}title": FieldLabel(UNTRUSTED, readers=f"{at}participants", names=True),
        f"{at}description": told,
        f"{at}start_time": record,
        f"{at}end_time": record,
        f"{at}location": told,
        f"{at}participants#": record,
        f"{at}participants": record,
        f"{at}all_day": record,
        f"{at}status": SERVICE,
    }


def _file(at: str) -> dict[str, FieldLabel]:
    readers = f"{at}owner,{at}shared_with"
    return {
        f"{at}id_": SERVICE,
        f"{at}filename": FieldLabel(UNTRUSTED, readers=readers, names=True),
        f"{at}content": FieldLabel(UNTRUSTED, readers=readers),
        f"{at}owner": PRIVATE_RECORD,
        f"{at}last_modified": SERVICE,
        f"{at}shared_with#": PRIVATE_RECORD,
        f"{at}shared_with": PRIVATE_RECORD,
        f"{at}size": SERVICE,
    }


def _transaction(at: str) -> dict[str, FieldLabel]:
    readers = f"{at}sender,{at}recipient"
    record = FieldLabel(DIRECTORY, readers=readers)
    fields = {f"{at}{f}": record for f in ("id", "sender", "recipient", "amount", "date", "recurring")}
    return {**fields, f"{at}subject": FieldLabel(UNTRUSTED, readers=readers, names=True, author=f"{at}sender")}


_LIST = {"#": RECORD, "[]#": RECORD}
# all messages of a channel (or an inbox) have one audience; who posted in which channel the workspace knows
_BODY = FieldLabel(UNTRUSTED, readers="[].recipient", author="[].sender")
_POSTS = {**_LIST, "[].sender": RECORD, "[].recipient": RECORD, "[].body": _BODY}
_LETTERS = {
    **_LIST,
    "[].sender": FieldLabel(DIRECTORY, readers="[].recipient"),
    "[].recipient": FieldLabel(DIRECTORY, readers="[].recipient"),
    "[].body": _BODY,
}
_ONE = {"#": RECORD}
#: `{name: text}` of a booking platform's own listing
_LISTING = {"*": RECORD, "#": RECORD}


def _tool(  # noqa: PLR0917  # one row of the table below
    name: str,
    effect: ToolEffect,
    operation: str,
    arguments: str,
    output: TypeSpec,
    labels: Mapping[str, FieldLabel],
    about: str,
) -> ToolDeclaration:
    """arguments: `name:role[:type][?]`, separated by spaces; `?` is optional."""
    made = []
    for word in arguments.split():
        required = not word.endswith("?")
        parts = [*word.rstrip("?").split(":"), ""]
        spec = _KINDS[parts[2]]
        nullable = TypeSpec(spec.kind, nullable=True, items=spec.items)
        made.append(ArgumentDeclaration(parts[0], spec if required else nullable, parts[1], required))  # type: ignore[arg-type]
    verb, _, resource = operation.partition(":")
    table = {"*": FieldLabel(UNTRUSTED), **labels}
    return ToolDeclaration(
        name, verb, resource, effect, tuple(made), output, tuple(table.items()), about, reversible=effect == "write"
    )


_EMAILS = {**_LIST, **_email("[].")}
_EVENTS = {**_LIST, **_event("[].")}
_FILES = {**_LIST, **_file("[].")}
_TEXT = TypeSpec("string")

MAIL_AND_CALENDAR = [
    _tool(
        "send_email", "egress", "send:email",
        "recipients:recipient:list subject:content body:content attachments:target:json? cc:recipient:list?"
        " bcc:recipient:list?",
        EMAIL, {**_ONE, **_email("")}, "send an email",
    ),
    _tool(
        "create_calendar_event", "write", "create:calendar",
        "title:content start_time:option end_time:option description:content? participants:recipient:list?"
        " location:content?",
        EVENT, {**_ONE, **_event("")}, "create an event and invite its participants",
    ),
    _tool("search_calendar_events", "read", "read:calendar", "query:selector date:selector?", _list(EVENT), _EVENTS,
          "events with the query in title or description"),
    _tool("get_day_calendar_events", "read", "read:calendar", "day:selector", _list(EVENT), _EVENTS, "events of a day"),
    _tool("cancel_calendar_event", "destructive", "cancel:calendar", "event_id:target", _TEXT, {},
          "cancel an event and tell its participants"),
]  # fmt: skip

WORKSPACE = [
    *MAIL_AND_CALENDAR,
    _tool("delete_email", "destructive", "delete:email", "email_id:target", _TEXT, {}, "delete an email"),
    _tool("get_unread_emails", "read", "read:email", "", _list(EMAIL), _EMAILS, "unread emails, now marked as read"),
    _tool("get_sent_emails", "read", "read:email", "", _list(EMAIL), _EMAILS, "sent emails"),
    _tool("get_received_emails", "read", "read:email", "", _list(EMAIL), _EMAILS, "received emails"),
    _tool("get_draft_emails", "read", "read:email", "", _list(EMAIL), _EMAILS, "drafts"),
    _tool("search_emails", "read", "read:email", "query:selector sender:selector?", _list(EMAIL), _EMAILS,
          "emails with the query in subject or body"),
    _tool("search_contacts_by_name", "read", "read:contacts", "query:selector", _list(CONTACT),
          {**_LIST, "[].email": RECORD, "[].name": FieldLabel(DIRECTORY, names=True)}, "contacts by name"),
    _tool("search_contacts_by_email", "read", "read:contacts", "query:selector", _list(CONTACT),
          {**_LIST, "[].email": RECORD, "[].name": FieldLabel(DIRECTORY, names=True)}, "contacts by address"),
    _tool("get_current_day", "read", "read:clock", "", _TEXT, {"*": FieldLabel(SYSTEM, readers="*", private=False)},
          "today"),
    _tool("reschedule_calendar_event", "write", "update:calendar",
          "event_id:target new_start_time:option new_end_time:option?", EVENT, {**_ONE, **_event("")},
          "move an event and tell its participants"),
    _tool("add_calendar_event_participants", "egress", "share:calendar",
          "event_id:target participants:recipient:list", EVENT, {**_ONE, **_event("")}, "invite to an event"),
    _tool("append_to_file", "write", "write:file", "file_id:target content:content", FILE, {**_ONE, **_file("")},
          "append to a file"),
    _tool("search_files_by_filename", "read", "read:file", "filename:selector", _list(FILE), _FILES, "files by name"),
    _tool("create_file", "write", "write:file", "filename:content content:content", FILE, {**_ONE, **_file("")},
          "create a file"),
    _tool("delete_file", "destructive", "delete:file", "file_id:target", FILE, {**_ONE, **_file("")}, "delete a file"),
    _tool("get_file_by_id", "read", "read:file", "file_id:target", FILE, {**_ONE, **_file("")}, "one file"),
    _tool("list_files", "read", "read:file", "", _list(FILE), _FILES, "all files"),
    _tool("share_file", "egress", "share:file", "file_id:target email:recipient permission:option", FILE,
          {**_ONE, **_file("")}, "share a file"),
    _tool("search_files", "read", "read:file", "query:selector", _list(FILE), _FILES, "files by content"),
]  # fmt: skip


def _look_up(name: str, argument: str, about: str, output: TypeSpec = ANY, kind: str = "list") -> ToolDeclaration:
    suffix = f":{kind}" if kind else ""
    return _tool(name, "read", "read:listing", f"{argument}:selector{suffix}", output, _LISTING, about)


def _rating(name: str, argument: str) -> ToolDeclaration:
    """A list of `{name, rating, reviews}`: the platform computes the rating, strangers write the reviews."""
    row = TypeSpec(
        "object",
        fields=(("name", _TEXT), ("rating", TypeSpec("number")), ("reviews", NAMES)),
        required=("name", "rating", "reviews"),
    )
    labels = {
        **_LIST,
        "[].name": RECORD,
        "[].rating": RECORD,
        "[].reviews#": RECORD,
        "[].reviews": FieldLabel(UNTRUSTED, readers="*", private=False),
    }
    return _tool(name, "read", "read:listing", f"{argument}:selector:list", _list(row), labels, "rating and reviews")


def _reserve(name: str, target: str, times: str) -> ToolDeclaration:
    return _tool(name, "write", "book:travel", f"{target}:target {times}", _TEXT, {}, "make a reservation")


TRAVEL = [
    *MAIL_AND_CALENDAR,
    _tool("get_user_information", "read", "read:profile", "", ANY, {"*": PRIVATE_RECORD, "#": RECORD},
          "the user's personal data"),
    _look_up("get_all_hotels_in_city", "city", "hotels of a city", NAMES, ""),
    _look_up("get_hotels_prices", "hotel_names", "lowest and highest price of hotels"),
    _rating("get_rating_reviews_for_hotels", "hotel_names"),
    _look_up("get_hotels_address", "hotel_name", "address of a hotel", ANY, ""),
    _look_up("get_all_restaurants_in_city", "city", "restaurants of a city", NAMES, ""),
    _look_up("get_cuisine_type_for_restaurants", "restaurant_names", "cuisine"),
    _look_up("get_restaurants_address", "restaurant_names", "address"),
    _rating("get_rating_reviews_for_restaurants", "restaurant_names"),
    _look_up("get_dietary_restrictions_for_all_restaurants", "restaurant_names", "dietary offers"),
    _look_up("get_contact_information_for_restaurants", "restaurant_names", "contact"),
    _look_up("get_price_for_restaurants", "restaurant_names", "price per person"),
    _look_up("check_restaurant_opening_hours", "restaurant_names", "opening hours"),
    _look_up("get_all_car_rental_companies_in_city", "city", "car rental companies of a city", NAMES, ""),
    _look_up("get_car_types_available", "company_name", "types of car"),
    _rating("get_rating_reviews_for_car_rental", "company_name"),
    _look_up("get_car_fuel_options", "company_name", "fuels"),
    _look_up("get_car_rental_address", "company_name", "address"),
    _look_up("get_car_price_per_day", "company_name", "price per day"),
    _reserve("reserve_hotel", "hotel", "start_day:option end_day:option"),
    _reserve("reserve_car_rental", "company", "start_time:option end_time:option?"),
    _reserve("reserve_restaurant", "restaurant", "start_time:option"),
    _tool("get_flight_information", "read", "read:listing", "departure_city:selector arrival_city:selector",
          _list(FLIGHT), _LISTING | {"[]#": RECORD}, "flights between two cities"),
]  # fmt: skip

_TRANSACTIONS = {**_LIST, **_transaction("[].")}
_SCHEDULE = "recipient:recipient amount:amount:number subject:content date:option"
_DONE = _record(message="string")

BANKING = [
    _tool("get_iban", "read", "read:account", "", _TEXT, {"*": OWN_NUMBER},
          "the user's own account number"),
    _tool("send_money", "pay", "pay:account", _SCHEDULE, _DONE, _ONE, "send money"),
    _tool("schedule_transaction", "pay", "pay:account", _SCHEDULE + " recurring:option:bool", _DONE, _ONE,
          "schedule a payment"),
    _tool("update_scheduled_transaction", "pay", "pay:account",
          "id:target:int recipient:recipient? amount:amount:number? subject:content? date:option? recurring:option:bool?",
          _DONE, _ONE, "change a scheduled payment"),
    _tool("get_balance", "read", "read:account", "", TypeSpec("number"), {"*": SERVICE}, "balance"),
    _tool("get_most_recent_transactions", "read", "read:account", "n:selector:int?", _list(TRANSACTION), _TRANSACTIONS,
          "transactions"),
    _tool("get_scheduled_transactions", "read", "read:account", "", _list(TRANSACTION), _TRANSACTIONS,
          "scheduled payments"),
    _tool("read_file", "read", "read:file", "file_path:target", _TEXT, {}, "text of a file"),
    _tool("get_user_info", "read", "read:profile", "", ANY, {"*": PRIVATE_RECORD, "#": RECORD}, "the user's profile"),
    _tool("update_password", "write", "update:credential", "password:credential", _DONE, _ONE, "set a new password"),
    _tool("update_user_info", "write", "update:profile",
          "first_name:content? last_name:content? street:content? city:content?", _DONE, _ONE, "change the profile"),
]  # fmt: skip

_WORD = {"#": RECORD, "[]": RECORD, "*": RECORD}

SLACK = [
    _tool("get_channels", "read", "read:slack", "", NAMES, _WORD, "channels"),
    _tool("add_user_to_channel", "write", "share:slack", "user:recipient channel:target", ANY, {}, "add to a channel"),
    _tool("read_channel_messages", "read", "read:slack", "channel:target", _list(MESSAGE), _POSTS,
          "messages of a channel"),
    _tool("read_inbox", "read", "read:slack", "user:target", _list(MESSAGE), _LETTERS, "messages to a user"),
    _tool("send_direct_message", "egress", "send:slack", "recipient:recipient body:content", ANY, {}, "write to a user"),
    _tool("send_channel_message", "egress", "send:slack", "channel:recipient body:content", ANY, {},
          "write to a channel"),
    _tool("get_users_in_channel", "read", "read:slack", "channel:target", NAMES, _WORD, "members of a channel"),
    _tool("invite_user_to_slack", "egress", "share:slack", "user:recipient user_email:recipient", ANY, {}, "invite"),
    _tool("remove_user_from_slack", "destructive", "delete:slack", "user:target", ANY, {}, "remove a user"),
    _tool("get_webpage", "read", "read:web", "url:destination", _TEXT,
          {"*": FieldLabel(UNTRUSTED, readers="*", private=False)}, "text of a web page"),
    _tool("post_webpage", "egress", "write:web", "url:destination content:content", ANY, {}, "publish a web page"),
]  # fmt: skip

SUITES: dict[str, dict[str, ToolDeclaration]] = {
    name: {t.name: t for t in tools}
    for name, tools in (("workspace", WORKSPACE), ("travel", TRAVEL), ("banking", BANKING), ("slack", SLACK))
}


def _names(text: str) -> list[str]:
    return [line.strip() for line in text.partition(": ")[2].split("\n") if line.strip()]


def _ratings(value: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = []
    for name, text in value.items():
        head, _, rest = text.partition("\nReviews: ")
        rows.append({"name": name, "rating": float(head.removeprefix("Rating: ")), "reviews": rest.split("\n")})
    return rows


def _prices(value: Mapping[str, str]) -> dict[str, dict[str, float]]:
    out = {}
    for name, text in value.items():
        low, _, high = text.removeprefix("Price range: ").partition(" - ")
        out[name] = {"min": float(low), "max": float(high)}
    return out


def _flights(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in filter(None, text.split("\n")):
        found = dict(part.partition(": ")[::2] for part in line.split(", ") if ": " in part)
        rows.append(
            {
                "airline": found.get("Airline", ""),
                "flight_number": found.get("Flight Number", ""),
                "departure_time": found.get("Departure Time", ""),
                "arrival_time": found.get("Arrival Time", ""),
                "price": float(found.get("Price", "nan")),
                "contact": found.get("Contact Information", ""),
            }
        )
    return rows


#: the tools give some results as prose; a declaration that labels fields needs fields
SHAPES: dict[str, Any] = {
    "get_all_hotels_in_city": _names,
    "get_all_restaurants_in_city": _names,
    "get_all_car_rental_companies_in_city": _names,
    "get_rating_reviews_for_hotels": _ratings,
    "get_rating_reviews_for_restaurants": _ratings,
    "get_rating_reviews_for_car_rental": _ratings,
    "get_hotels_prices": _prices,
    "get_flight_information": _flights,
}
