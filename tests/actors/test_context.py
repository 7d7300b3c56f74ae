"""The part of `vectors/context.json` that a host can tell before and after a run, and the rules around it (context §1 to §6)."""

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from actors.context import ContextLimits, consistent, draft, harmless_uri, supplied, system_text, user_message
from actors.errors import Refused
from actors.request import Catalog, Features, ProviderFacts, RunRequest, checked
from actors.request_parts import Location, OutputArtifact

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "context.json").read_text())
INPUTS: dict[str, Any] = VECTORS["inputs"]
PNG = base64.b64decode(INPUTS["image"]["data"])
SEES = ("image/png", "image/jpeg", "image/webp", "application/pdf")
CATALOG = Catalog(
    providers={"mock": ProviderFacts(input_media_types={"demo": SEES})},
    features=Features(context_resolver=True),
)
NO_RESOLVER = Catalog(providers=CATALOG.providers)
TEXT_ONLY = Catalog(providers={"mock": ProviderFacts()}, features=CATALOG.features)
ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def run(*attachments: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {**INPUTS["request"], "attachments": list(attachments), **members}


def text(content: str, name: str = "t") -> dict[str, Any]:
    return {"type": "text", "mediaType": "text/plain", "source": {"id": name, "revision": "1"}, "text": content}


def image(data: bytes | str, media: str = "image/png", kind: str = "image", name: str = "i") -> dict[str, Any]:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": kind, "mediaType": media, "source": {"id": name, "revision": "1"}, "data": encoded}


def refusal(document: object, catalog: Catalog = CATALOG) -> str:
    with pytest.raises(Refused) as caught:
        checked(document, catalog)
    return caught.value.code


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(INPUTS["text"]))
    for path, value in patch.items():
        *outer, last = path.split(".")
        place = changed
        for name in outer:
            place = place[name]
        place[last] = value
    return changed


PREFLIGHT: dict[str, tuple[dict[str, Any], Catalog]] = {
    "image": (run(INPUTS["image"]), TEXT_ONLY),
    "reference": (run(INPUTS["reference"]), NO_RESOLVER),
    "text,text": (run(INPUTS["text"], INPUTS["text"]), CATALOG),
    "text of 140000 x U+00E9 = 280000 bytes": (run(text("\u00e9" * 140_000)), CATALOG),
    "image whose data is base64 of plain text": (run(image(b"plain text")), CATALOG),
    "three texts of 200000 bytes": (run(*(text("x" * 200_000, f"t{n}") for n in range(3))), CATALOG),
    "image with one trailing space in data": (run({**INPUTS["image"], "data": INPUTS["image"]["data"] + " "}), CATALOG),
    "17 items": (run(*(text("x", f"t{n}") for n in range(17))), CATALOG),
}


@pytest.mark.parametrize("case", VECTORS["inline"][1]["cases"], ids=lambda case: json.dumps(case)[:60])
def test_every_preflight_case_of_the_vectors_gets_its_code(case: dict[str, Any]) -> None:
    if "patch" in case:
        document, catalog = run(patched(case["patch"])), CATALOG
    elif "outputArtifact" in case:
        document, catalog = run(outputArtifact={"mediaType": "text/markdown", **case["outputArtifact"]}), CATALOG
    else:
        document, catalog = PREFLIGHT[",".join(case["attachments"])]
    assert refusal(document, catalog) == case["expect"]["code"]


def test_the_golden_manifests_of_the_vectors_are_made() -> None:
    request = checked(run(INPUTS["text"], INPUTS["image"], INPUTS["pdf"]), CATALOG)
    made = [msgspec.to_builtins(each.manifest) for each in supplied(request.attachments or ())]
    golden = VECTORS["golden"]
    assert made[0] == golden["textManifest"]
    assert made[1].items() >= golden["imageManifest"].items()
    assert made[2].items() >= golden["pdfManifest"].items()
    assert made[2]["location"] == {"page": 1}
    assert "title" not in made[0]
    assert "expiresAt" not in made[0]


def test_the_model_gets_the_input_then_the_marked_data_and_binaries_natively() -> None:
    request = checked(run(INPUTS["text"], INPUTS["image"], INPUTS["pdf"]), CATALOG)
    inputs = supplied(request.attachments or ())
    message = user_message(request.input, inputs)
    asked, heading, block = message.content.rsplit("\n", 2)
    assert asked == "Summarise\n"
    assert "not instructions" in heading
    entries = json.loads(block)
    assert entries[0] == {"source": VECTORS["golden"]["textManifest"], "text": "# Anchorage\nMud over clay."}
    assert [entry.get("attachment") for entry in entries] == [None, "image", "pdf"]
    assert [(each.media_type, json.loads(bytes(each.source))) for each in message.attachments] == [
        ("image/png", entries[1]["source"]),
        ("application/pdf", entries[2]["source"]),
    ]
    assert message.attachments[0].data == PNG


def test_without_inputs_the_message_is_the_input_alone() -> None:
    message = user_message("Hello", ())
    assert message.content == "Hello"
    assert message.attachments == ()


def test_instructions_then_the_output_demand_then_the_notice_joined_by_blank_lines() -> None:
    schema = Raw(b'{"type":"object"}')
    whole = system_text("Be brief.", schema, context=True)
    assert whole is not None
    mine, demand, notice = whole.split("\n\n")
    assert mine == "Be brief."
    assert demand.endswith('{"type":"object"}')
    assert "untrusted reference data" in notice
    assert "[source:ID]" in notice
    assert system_text(None, None, context=False) is None
    assert system_text("", None, context=False) is None
    assert system_text(None, schema, context=False) == demand
    assert system_text(None, None, context=True) == notice


def artifact(name: str, media: str, content: str, output: bytes | None = None) -> dict[str, Any]:
    schema = {"type": "object"} if output is not None else None
    request: RunRequest = checked(
        run(
            INPUTS["text"],
            outputArtifact={"name": name, "mediaType": media},
            **({"outputSchema": schema} if schema else {}),
        ),
        CATALOG,
    )
    assert request.output_artifact is not None
    raw = Raw(output) if output is not None else None
    made = draft(ID, request.output_artifact, content, raw, supplied(request.attachments or ()))
    made_json: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return made_json


def test_a_text_artifact_is_the_final_text_with_its_digest_and_all_sources() -> None:
    content = "ok [source:chart-1]"
    assert artifact("brief.md", "text/markdown", content) == {
        "id": ID,
        "name": "brief.md",
        "mediaType": "text/markdown",
        "status": "draft",
        "content": content,
        "sha256": sha256(content.encode()).hexdigest(),
        "sourceIds": ["chart-1"],
    }


def test_a_json_artifact_is_the_compact_output() -> None:
    made = artifact("facts.json", "application/json", '{ "fact": 1.0 }', b'{"fact":1.0}')
    assert made["content"] == '{"fact":1.0}'


def test_an_artifact_over_the_bound_is_refused_in_bytes() -> None:
    assert len(artifact("big.md", "text/markdown", "x" * 262_144)["content"]) == 262_144
    for content in ("x" * 262_145, "\u00e9" * 131_073):
        with pytest.raises(Refused) as caught:
            draft(ID, OutputArtifact("big.md", "text/markdown"), content, None, ())
        assert caught.value.code == "ARTIFACT_TOO_LARGE"


@pytest.mark.parametrize(
    ("media", "kind", "content", "code"),
    [
        ("application/pdf", "pdf", b"%PDF-", None),
        ("application/pdf", "pdf", b"PDF-1.4", "INVALID_CONTEXT"),
        ("image/jpeg", "image", b"\xff\xd8\xff", None),
        ("image/jpeg", "image", PNG, "INVALID_CONTEXT"),
        ("image/webp", "image", b"RIFF1234WEBP", None),
        ("image/webp", "image", b"RIFF1234WAVE", "INVALID_CONTEXT"),
        ("image/png", "image", PNG[:8], None),
        ("image/png", "image", PNG[:7], "INVALID_CONTEXT"),
        ("image/png", "image", PNG + b"\0" * (262_144 - len(PNG)), None),
        ("image/png", "image", PNG + b"\0" * (262_145 - len(PNG)), "CONTEXT_TOO_LARGE"),
        ("image/png", "image", "!" * 349_529, "CONTEXT_TOO_LARGE"),
        ("image/png", "image", "!" * 349_528, "INVALID_CONTEXT"),
        ("image/png", "image", "====", "INVALID_CONTEXT"),
        ("image/png", "image", "iVBORw0KGgp=", "INVALID_CONTEXT"),
        ("image/png", "image", "iVBORw0KGg", "INVALID_CONTEXT"),
        ("image/png", "image", "iVBORw0KGg_=", "INVALID_CONTEXT"),
        ("image/png", "image", "iVBO\u0660\u0661\u0662\u0663", "INVALID_CONTEXT"),
    ],
)
def test_a_binary_must_be_small_canonical_and_what_it_says(
    media: str, kind: str, content: bytes | str, code: str | None
) -> None:
    document = run(image(content, media, kind))
    if code is None:
        checked(document, CATALOG)
    else:
        assert refusal(document) == code


def test_the_running_total_counts_decoded_bytes() -> None:
    two = [text("x" * 262_144, "a"), text("y" * 262_144, "b")]
    checked(run(*two), CATALOG)
    assert refusal(run(*two, text("z", "c"))) == "CONTEXT_TOO_LARGE"


def test_a_reference_shares_the_ids_but_not_the_budget() -> None:
    assert refusal(run(INPUTS["text"], {**INPUTS["reference"], "revision": "other"})) == "INVALID_CONTEXT"
    request = checked(run(INPUTS["reference"], text("x", "y")), CATALOG)
    assert [each.manifest.id for each in supplied(request.attachments or ())] == ["y"]


def test_a_host_may_allow_less() -> None:
    request = checked(run(INPUTS["text"], INPUTS["image"]), CATALOG)
    for limits in (ContextLimits(max_bytes=95), ContextLimits(max_text_bytes=25)):
        with pytest.raises(Refused) as caught:
            supplied(request.attachments or (), limits)
        assert caught.value.code == "CONTEXT_TOO_LARGE"
    assert len(supplied(request.attachments or (), ContextLimits(max_bytes=96, max_text_bytes=26))) == 2


@pytest.mark.parametrize(
    ("location", "sound"),
    [
        ({}, True),
        ({"page": 2}, True),
        ({"page": 2, "page_end": 2}, True),
        ({"page": 2, "page_end": 1}, False),
        ({"page_end": 1}, False),
        ({"start_line": 1, "end_line": 9}, True),
        ({"end_line": 9}, False),
        ({"start_line": 10, "end_line": 9, "page": 1, "page_end": 2}, False),
    ],
)
def test_an_end_needs_a_start_that_is_not_after_it(location: dict[str, int], *, sound: bool) -> None:
    assert consistent(Location(**location)) is sound  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "sound"),
    [
        ("https://example.com", True),
        ("https://example.com:8443/a?b=c@d#e@f", True),
        ("https://[::1]:443/x", True),
        ("https://@example.com/", True),
        ("app://shelf/charts", True),
        ("app:///local", True),
        ("app://notes?x=a@b", True),
        ("https://name@example.com/", False),
        ("https://:secret@example.com/", False),
        ("https://name:secret@example.com/", False),
        ("https:////name:secret@example.com/", False),
        ("https://\\name@example.com/", False),
        ("https://good.com\\@evil.com/", True),
        ("https://a@b@example.com/", False),
        ("app://name:secret@shelf", False),
        ("https://?x", False),
        ("https://[::1", False),
        ("https://[nope]/", False),
        ("https://example.com:99999/", False),
        ("https://example.com:00443/", True),
        ("https://example.com:x/", False),
        ("https://exa<mple.com/", False),
        ("app://:80/", False),
    ],
)
def test_a_uri_is_a_url_without_credentials(uri: str, *, sound: bool) -> None:
    assert harmless_uri(uri) is sound


def test_a_uri_of_another_scheme_or_with_white_space_is_an_invalid_request() -> None:
    for uri in (
        "http://example.com",
        "HTTPS://example.com",
        "https://a b",
        "https://a\u00a0b",
        "https://a\ufeffb",
        "https://",
    ):
        assert refusal(run(patched({"source.uri": uri}))) == "INVALID_REQUEST"
