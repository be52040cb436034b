"""The report: right numbers, hostile texts as text, any state of a run, a bounded size."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from openrlhf_dynamicrubric.display import one_line, visible
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.records import RecordFile, group_record
from openrlhf_dynamicrubric.report import main, write_report
from openrlhf_dynamicrubric.report import page as page_module
from openrlhf_dynamicrubric.report.page import choose_rubric_groups, choose_sets, fill_up, groups_of_rubrics
from openrlhf_dynamicrubric.report.plots import Chart, Line, draw, thin
from openrlhf_dynamicrubric.report.read import read_run
from openrlhf_dynamicrubric.report.tables import charts, kinds, phase_curves, probability, ranked_items, track
from openrlhf_dynamicrubric.scoring import response_scores
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable, Usage, WrittenRubric
from tests.synthetic_run import write_run

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></details></div><style>*{display:none}</style>",
    "</script><script>alert(2)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- <b> &amp; &lt;i&gt;",
    "' onmouseover='alert(3)",
)
UNSEEN = "abc\u202edcba\x1b[31mred\x00end\ud800\u200b\U000e0041"


def scored(
    verdicts: list[list[int]],
    *,
    weights: list[int] | None = None,
    criteria: list[str] | None = None,
    prompt: Any = "Say something",
    responses: list[str] | None = None,
    id: str = "p",
    rejected: tuple[str, ...] = (),
    text: str = "{}",
) -> Evaluation:
    """A scored set with the given verdicts."""
    verdicts_MK = np.array(verdicts, dtype=np.float64)
    criteria = criteria or [f"Criterion {m}" for m in range(len(verdicts))]
    rubric = Rubric(tuple(RubricItem(c, w) for c, w in zip(criteria, weights or [1] * len(criteria), strict=True)))
    responses = responses or [f"response {k}" for k in range(verdicts_MK.shape[1])]
    return Evaluation(
        response_set=ResponseSet(prompt, tuple(responses), (), id),
        rubric=rubric,
        probabilities_MK=np.where(verdicts_MK == 1, 0.9, 0.2),
        verdicts_MK=verdicts_MK,
        scores_K=response_scores(rubric.weights_M, verdicts_MK),
        written=WrittenRubric(rubric, text, (), rejected, 0, Usage(1 + len(rejected), 100, 0, 10, 0.5)),
        verifier_usage=Usage(verdicts_MK.size, 50, 20, 0, 0.25),
    )


def records_of(folder: Path, *steps: list[Any], **context: Any) -> Path:
    """A folder with one record a set, a list of sets a step."""
    file = RecordFile(folder / "records" / "groups.jsonl", **context)
    for step, outcomes in enumerate(steps):
        file.append([o if isinstance(o, dict) else group_record(o) for o in outcomes], step=step)
    return folder


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts = ""
        self.styles = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts += data
        elif self._inside == "style":
            self.styles += data
        else:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def flat(self) -> str:
        return " ".join(self.text.split())


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_numbers_of_a_small_run(tmp_path: Path) -> None:
    lost = Unscorable(ResponseSet("x", ("a", "b"), (), "p"), "verifier_call", "timeout", written=None)
    records_of(
        tmp_path,
        [scored([[1, 1], [0, 0]], weights=[5, 3]), lost],  # equal scores, both items saturated
        [scored([[1, 0], [1, 1]], weights=[5, 3], rejected=("cut off after 8 tokens",))],  # scores 1 and 3/8
    )
    data = read_run(tmp_path)
    curves = phase_curves(data, data.phases[0])
    assert curves["gap"].steps == {0: 0.0, 1: 0.625}
    assert curves["flat"].steps == {0: 1.0, 1: 0.0}
    assert curves["saturated"].steps == {0: 1.0, 1: 0.5}
    assert curves["disc"].steps == {0: 0.0, 1: pytest.approx(5 * 0.25 / 8)}
    assert curves["unscorable"].steps == {0: 0.5, 1: 0.0}
    assert curves["invalid"].steps == {0: 0.0, 1: 0.5}
    assert data.usage["generator"] == Usage(3, 200, 0, 20, 1.0)
    assert data.usage["verifier"] == Usage(8, 100, 40, 0, 0.5)
    assert data.yes_shares == {"all": 2, "none": 1, "2": 1}
    flat = page_of(tmp_path).flat
    assert "0.312 (0.000 → 0.625)" in flat
    assert "2 of 3" in flat
    assert "No scores: verifier call. timeout" in flat
    assert "cut off after 8 tokens" in flat


def test_first_and_last_are_means_over_a_quarter_of_the_steps(tmp_path: Path) -> None:
    none, full = [scored([[1, 1]])], [scored([[1, 0]])]
    records_of(tmp_path, none, full, none, none, none, none, full, full)
    data = read_run(tmp_path)
    gap = phase_curves(data, data.phases[0])["gap"]
    assert (gap.mean, gap.first, gap.last) == (0.375, 0.5, 1.0)


def test_evaluation_groups_stay_out_of_the_curves(tmp_path: Path) -> None:
    records_of(
        tmp_path, [{**group_record(scored([[1, 0]])), "mode": "eval"}, {**group_record(scored([[1, 1]])), "mode": "train"}]
    )
    data = read_run(tmp_path)
    assert phase_curves(data, data.phases[0])["gap"].steps == {0: 0.0}
    assert len(data.groups) == 2


def test_items_are_ranked_by_the_variance_of_their_verdicts(tmp_path: Path) -> None:
    split, most, never = [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]
    records_of(
        tmp_path,
        [scored([split, never], criteria=["Splits", "Never met"], weights=[2, 5])],
        [scored([most, split], criteria=["Mostly met", " splits"], weights=[1, 4])],
    )
    data = read_run(tmp_path)
    best, worst = ranked_items(data.items.values(), 2)
    assert [(item.criterion, item.count, item.weight / item.count) for item in best] == [
        ("Splits", 2, 3.0),
        ("Mostly met", 1, 1.0),
    ]
    assert best[0].variance / best[0].count == 0.25
    assert best[1].yes == 0.75
    assert [item.criterion for item in worst] == ["Never met"]


def test_hostile_texts_show_as_text_and_add_no_markup(tmp_path: Path) -> None:
    texts = [*HOSTILE, UNSEEN]
    evil = "\n".join(texts)
    outcomes = [
        scored([[1] * 4 + [0] * 4], criteria=[evil], responses=texts, prompt=evil, id=evil, rejected=(evil,), text=evil),
        scored([[1, 0]], prompt=[{"role": "system", "content": evil}, {"role": "user", "content": evil}]),
        Unscorable(ResponseSet("x", tuple(texts), tuple(texts), evil), evil, evil, (evil,), rejected_texts=(evil,)),
    ]
    (tmp_path / "evil").mkdir()
    records_of(tmp_path / "evil", outcomes, outcomes, generator=evil, verifier=evil)
    records_of(tmp_path / "tame", [scored([[1, 0]])], [scored([[1, 0]])])
    evil_page, tame = page_of(tmp_path / "evil"), page_of(tmp_path / "tame")
    for text in HOSTILE:
        assert text in evil_page.text
    assert "abc⟨U+202E⟩dcba⟨U+001B⟩[31mred⟨U+0000⟩end" in evil_page.text
    assert {tag for tag, _ in evil_page.tags} <= {tag for tag, _ in tame.tags} | {"ul", "ol", "li"}
    assert evil_page.count("script") == evil_page.count("style") == 1
    assert not [name for _, attributes in evil_page.tags for name in attributes if name.startswith("on") or name == "src"]
    assert evil_page.scripts == tame.scripts
    assert evil_page.styles == tame.styles
    whole = (tmp_path / "evil" / "report.html").read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\u200b\ud800-\udfff]", whole)


def test_page_allows_its_own_script_only_and_asks_no_network(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.scripts.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert not [a for _, a in page.tags if {"src", "xlink:href", "data", "action"} & a.keys()]
    assert {tag for tag, a in page.tags if "href" in a} == {"a", "use"}
    assert all(str(a["href"]).startswith("#") for _, a in page.tags if "href" in a)
    assert "url(" not in page.styles
    assert "@import" not in page.styles


def test_every_link_has_its_target(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", steps=40, groups=4))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for _, a in page.tags if "href" in a} <= set(ids)


def test_complete_run(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", rounds=2, steps=6))
    assert "6 of 6" not in page.flat
    assert "run complete" in page.flat
    assert "Judged by the embedded 135M model." in page.flat
    assert "12 of 24 groups of rubrics" in page.flat
    assert page.flat.count("✓ complete") == 6
    assert page.count("svg") > 15


def test_other_judges_get_no_notice_about_the_embedded_model(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1, steps=2)
    state = json.loads((run / "run.json").read_text())
    state["config"]["models"] = {"policy": "embedded", "generator": "org/big", "verifier": "org/big"}
    (run / "run.json").write_text(json.dumps(state))
    assert "proves nothing about quality" not in page_of(run).flat


def test_notice_where_only_the_records_name_the_embedded_model(tmp_path: Path) -> None:
    folder = records_of(tmp_path, [scored([[1, 0]])], generator="org/big", verifier="embedded")
    assert "proves nothing about quality" in page_of(folder).flat


def test_records_of_a_run_without_a_run_file_name_their_judges(tmp_path: Path) -> None:
    page = page_of(records_of(tmp_path / "groups", [scored([[1, 0]])], generator="org/big", verifier="SmolLM2-135M-Instruct"))
    assert "Generatororg/big" in page.flat
    assert "VerifierSmolLM2-135M-Instruct" in page.flat
    assert "Judged by the embedded 135M model." in page.flat
    row = {"kind": "rubric", "id": "p", "invalid": "no JSON", "disc": 0.0, "verifier_usage": {}}
    RecordFile(tmp_path / "records/rubrics.jsonl", generator="mine", verifier="embedded").append([row], step=0)
    assert read_run(tmp_path / "records").judges == {"generator": {"mine"}, "verifier": {"embedded"}}
    assert "Judged by the embedded 135M model." in page_of(tmp_path / "records").flat


@pytest.mark.parametrize(
    ("value", "yes", "threshold", "text"),
    [
        (0.497, False, 0.5, "0.497"),
        (0.4951, False, 0.5, "0.495"),
        (0.49, False, 0.5, "0.49"),
        (0.5, True, 0.5, "0.50"),
        (0.503, True, 0.5, "0.50"),
        (0.499999, False, 0.5, "0.499999"),
        (0.5, False, 0.5, "<0.5"),  # was a little less before it was rounded for the record
        (0.697, False, 0.7, "0.697"),
        (0.697, False, 0.5, "0.697"),  # judged by another threshold
        (0.3331, True, 0.333, "0.333"),
        (1.0, True, 0.5, "1.00"),
        (math.nan, False, 0.5, "–"),
    ],
)
def test_a_probability_stands_on_the_side_of_its_verdict(value: float, yes: bool, threshold: float, text: str) -> None:
    assert probability(value, yes, threshold) == text


def test_a_card_shows_a_close_no_below_the_threshold(tmp_path: Path) -> None:
    record = {**group_record(scored([[1, 0]])), "probabilities": [[0.697, 0.497]]}
    assert "✓0.70✗0.497" in page_of(records_of(tmp_path / "half", [record])).flat.replace(" ", "")
    record = {**record, "verdicts": [[1, 0]], "probabilities": [[0.702, 0.697]]}
    run = tmp_path / "run"
    records_of(run / "round-01" / "train-policy", [record])
    (run / "run.json").write_text(json.dumps({"config": {"judge": {"verdict_threshold": 0.7}}}))
    assert "✓0.70✗0.697" in page_of(run).flat.replace(" ", "")


@pytest.mark.parametrize(
    ("place", "count"), [((1, "sample"), 0), ((1, "train-generator"), 1), ((1, "train-policy"), 2), ((2, "train-policy"), 5)]
)
def test_run_that_failed_part_of_the_way(tmp_path: Path, place: tuple[int, str], count: int) -> None:
    page = page_of(write_run(tmp_path / "run", fail_at=place))
    assert f"{count} of 6 phases complete" in page.flat
    assert "not complete 6 of 12 steps" in page.flat
    assert "RuntimeError: out of <memory>" in page.text


def test_folder_of_records_and_the_records_folder_itself(tmp_path: Path) -> None:
    folder = records_of(tmp_path, [scored([[1, 0]])], [scored([[1, 0]])])
    assert "2 of 2 response sets" in page_of(folder).flat
    assert "2 of 2 response sets" in Page(write_report(folder / "records", tmp_path / "x.html").read_text()).flat


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        write_report(tmp_path / "missing")
    with pytest.raises(DataError, match="nothing to report on"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_lines_are_named_and_an_unfinished_one_is_passed_over(tmp_path: Path) -> None:
    records_of(tmp_path, [scored([[1, 0]])])
    path = tmp_path / "records" / "groups.jsonl"
    good = path.read_bytes()
    newer = json.dumps({**json.loads(good), "schema": 2}).encode()
    no_scores = json.dumps({k: v for k, v in json.loads(good).items() if k != "scores"}).encode()
    path.write_bytes(good + b"{broken\n[1]\n" + newer + b"\n" + no_scores + b"\n" + good + b'{"kind": "gro')
    data = read_run(tmp_path)
    assert len(data.groups) == 2
    assert [line.split(":")[0] for line in data.damaged] == [
        "groups.jsonl, line 2",
        "groups.jsonl, line 3",
        "records/groups.jsonl, line 4",
        "records/groups.jsonl, line 5",
    ]
    assert "4 lines of the records could not be read" in page_of(tmp_path).flat


def test_records_that_shrink_while_they_are_read_are_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = records_of(tmp_path, *[[scored([[1, 0]], responses=[f"early {step}", "b"])] for step in range(4)])
    file = RecordFile(run / "records" / "groups.jsonl")
    reads = []

    def read_then_resume(folder: Path) -> Any:
        data = read_run(folder)
        reads.append(len(data.groups))
        if len(reads) == 1:  # the run goes on from step 1: two of its records are gone, one is another
            file.drop_from(1)
            file.append([group_record(scored([[1, 0]], responses=["again", "b"]))], step=1)
        return data

    monkeypatch.setattr(page_module, "read_run", read_then_resume)
    page = page_of(run)
    assert reads == [4, 2]
    assert "2 of 2 response sets" in page.flat
    assert "early 0" in page.flat
    assert "again" in page.flat
    assert "early 1" not in page.flat


def test_records_that_never_stand_still_end_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = records_of(tmp_path, [scored([[1, 0]])])

    def read_then_lose(folder: Path) -> Any:
        data = read_run(folder)
        path = run / "records" / "groups.jsonl"
        path.write_bytes(b" " + path.read_bytes())
        return data

    monkeypatch.setattr(page_module, "read_run", read_then_lose)
    with pytest.raises(DataError, match=r"groups\.jsonl changes while it is read"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_long_responses_keep_the_page_small_and_say_what_was_cut(tmp_path: Path) -> None:
    groups = [scored([[1] * 4 + [0] * 4], responses=[f"{g}-{k} " + '"<&' * 15_000 for k in range(8)]) for g in range(20)]
    page = write_report(records_of(tmp_path, groups))
    assert page.stat().st_size < 5_000_000
    text = page.read_text()
    shown = int(re.search(r"(\d+) of 20 response sets; (\d+) are left out", text)[1])  # pyright: ignore[reportOptionalSubscript]
    assert 1 <= shown < 20
    assert "characters left out" in text


def test_no_single_text_makes_the_page_large(tmp_path: Path) -> None:
    huge = "<&" * 1_000_000
    criteria = [f"{m} {huge}" for m in range(8)]
    one = scored([[1, 0]] * 8, criteria=criteria, prompt=huge, responses=[huge, "a"], id=huge, rejected=(huge,) * 9, text=huge)
    lost = Unscorable(ResponseSet("x", ("a",)), "invalid_rubric", huge, (huge,) * 9)
    assert write_report(records_of(tmp_path, [one, lost])).stat().st_size < 2_000_000


def test_long_run_is_sampled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=2, steps=60, groups=8)
    page = write_report(run)
    text = page.read_text()
    assert page.stat().st_size < 5_000_000
    assert "80 of 960 response sets; 880 are left out" in " ".join(text.split())
    assert "12 of 960 groups of rubrics" in " ".join(text.split())
    again = write_report(run, tmp_path / "again.html").read_text()
    assert re.sub(r"page written [\d: -]+", "", text) == re.sub(r"page written [\d: -]+", "", again)


def test_sets_are_chosen_by_rule_then_by_seed(tmp_path: Path) -> None:
    none, some, full = scored([[1, 1], [0, 0]]), scored([[1, 0], [1, 1]]), scored([[1, 0], [1, 0]])
    lost = Unscorable(ResponseSet("x", ("a",)), "invalid_rubric", "why")
    data = read_run(records_of(tmp_path, [some, none], [lost, full], [some] * 5, [some]))
    chosen = choose_sets(data.groups)
    whys = {data.groups.index(group): why for group, why in chosen}
    assert [(data.groups.index(group), why) for group, why in chosen[:4]] == [
        (0, "first"),
        (9, "last"),
        (3, "widest gap"),
        (2, "unscorable"),
    ]
    assert whys[1] == "no gap"
    assert sorted(whys) == list(range(10))
    assert [group for group, _ in choose_sets(data.groups, seed=1)] != [group for group, _ in chosen]


def test_rubric_groups_begin_with_their_first_member(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1, steps=3, groups=2)
    groups = groups_of_rubrics(read_run(run).sampled)
    assert [len(group) for group in groups] == [4] * 6
    assert len({id(group) for group, _ in choose_rubric_groups(groups)}) == 6


def test_fill_up_takes_what_fits_and_always_the_first() -> None:
    sizes = {"a": 50, "b": 30, "c": 40, "d": 5}
    candidates = [(name, "") for name in sizes]
    assert [name for name, _ in fill_up(candidates, lambda name, _: "x" * sizes[name], most=9, most_bytes=60)] == ["a", "d"]
    assert [name for name, _ in fill_up(candidates, lambda name, _: "x" * sizes[name], most=2, most_bytes=999)] == ["a", "b"]
    assert [name for name, _ in fill_up(candidates, lambda name, _: "ü" * sizes[name], most=9, most_bytes=1)] == ["a"]


def test_identical_responses_are_marked(tmp_path: Path) -> None:
    page = page_of(records_of(tmp_path, [scored([[1, 0, 1]], responses=["same", "other", "same"])]))
    assert "same text as 1" in page.flat
    assert page.flat.count("same text as") == 1


def test_scored_anchors_stand_in_the_matrix(tmp_path: Path) -> None:
    record = group_record(scored([[1, 0]]))
    anchors = {
        "anchors": ["good", "bad"],
        "anchor_scores": [1.0, 0.0],
        "anchor_verdicts": [[1, 0]],
        "anchor_probabilities": [[0.75, 0.25]],
    }
    folder = records_of(tmp_path, [{**record, **anchors}])
    data = read_run(folder)
    assert data.groups[0].accuracy == 1.0
    assert data.groups[0].anchor == pytest.approx(-math.log1p(math.exp(-1.0)))
    page = page_of(folder)
    assert "A1" in page.flat
    assert "0.75" in page.flat


def chart_of(*values: float, **options: Any) -> Chart:
    return Chart("Gap <b>", "", [Line("gap", list(enumerate(values)))], **options)


class Drawing:
    """What a reader sees of one chart: its texts by place, its shapes by class, the values of its dots."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.texts = {str(e.text): (float(e.get("x", "nan")), float(e.get("y", "nan"))) for e in self.root.iter("text")}

    def shapes(self, name: str) -> list[ElementTree.Element]:
        return [p for g in self.root.iter("g") if g.get("class") == name for p in g.iter("path") if not p.get("id")]

    def dots(self, name: str) -> list[tuple[float, float]]:
        groups = [group for group in self.root.iter("g") if group.get("class", "").startswith(f"dot {name}")]
        return [(float(e.get("x", "nan")), float(e.get("y", "nan"))) for group in groups for e in group.iter("use")]

    def value_at(self, y: float) -> float:
        """The value that the axis gives a height, by its lowest and highest label."""
        marks = {text: at for text, (x, at) in self.texts.items() if x < 46 and text != "step"}
        (low, low_at), (high, high_at) = max(marks.items(), key=lambda m: m[1]), min(marks.items(), key=lambda m: m[1])
        number_of = lambda text: float(text.replace("−", "-").rstrip("\u202f%"))  # noqa: E731
        centre = 148 - low_at  # a label stands a little below the line that it names
        share = (low_at + centre - y) / (low_at - high_at)
        return number_of(low) + share * (number_of(high) - number_of(low))


def test_charts_say_in_words_what_they_draw() -> None:
    chart = chart_of(0.25, 0.5, bounds=(0, 1), borders=[(0, "round 1"), (1, "round 2")], level=(0.75, "chance"))
    drawing = Drawing(draw(chart))
    assert drawing.root.get("role") == "img"
    assert drawing.root.get("aria-label") == "Gap <b>: gap 0.25 at step 0, 0.5 at step 1; chance is 0.75"
    assert [title.text for title in drawing.root.iter("title")] == ["step 0, gap: 0.25", "step 1, gap: 0.5"]
    assert {"round 1", "chance", "step", "0", "1", "0.00", "1.00"} <= set(drawing.texts)
    assert [len(drawing.shapes(name)) for name in ("line l0", "border", "level")] == [1, 1, 1]


def test_charts_draw_values_where_the_axis_says() -> None:
    lines = [Line("a", [(0, 0.25), (1, 0.5), (4, 0.0)]), Line("b", [(2, 1.0), (4, 0.75)])]
    drawing = Drawing(draw(Chart("t", "", lines, bounds=(0, 1))))
    assert [drawing.value_at(y) for _, y in drawing.dots("l0")] == pytest.approx([0.25, 0.5, 0.0], abs=0.002)
    assert [drawing.value_at(y) for _, y in drawing.dots("l1")] == pytest.approx([1.0, 0.75], abs=0.002)
    assert [x for x, _ in drawing.dots("l0")] == pytest.approx([drawing.texts[step][0] for step in "014"], abs=0.02)


@pytest.mark.parametrize(
    ("values", "bounds", "low", "high"),
    [
        ((0.2, 0.7), (0, 1), 0.0, 1.0),
        ((0.0, 0.23), None, 0.0, 0.3),
        ((-3.72, -1.9), None, -4.0, -1.0),
        ((5.0, 5.0), None, 0.0, 6.0),
        ((0.0, 0.0), None, 0.0, 1.0),
        ((7.0,), None, 0.0, 8.0),
        ((0.5, 1.4), (0, 1), 0.0, 1.5),
    ],
)
def test_axes_enclose_the_data_and_the_bounds(
    values: tuple[float, ...], bounds: tuple[float, float] | None, low: float, high: float
) -> None:
    drawing = Drawing(draw(chart_of(*values, bounds=bounds)))
    assert drawing.value_at(148) == pytest.approx(low)  # the lower edge
    assert drawing.value_at(18) == pytest.approx(high)  # the upper one
    assert [drawing.value_at(y) for _, y in drawing.dots("l0")] == pytest.approx(list(values), abs=0.004 * (high - low))


def test_curves_fill_their_charts_from_the_first_step_to_the_last() -> None:
    dots = Drawing(draw(chart_of(*range(8)))).dots("l0")
    assert [dots[0][0], dots[-1][0]] == [46, 360 - 14]


def test_neighbouring_marks_of_an_axis_never_read_the_same() -> None:
    for values in ((5.00001, 5.00002), (1e-6, 3e-6), (123_456_701.0, 123_456_702.0), (0.9999, 1.0001), (-2e5, 0)):
        texts = ElementTree.fromstring(draw(chart_of(*values))).iter("text")
        marks = [text.text for text in texts if float(text.get("x", "nan")) < 46]
        assert len(marks) > 3
        assert len(marks) == len(set(marks))
        assert sum(len(str(mark)) > 7 for mark in marks) <= 1  # what stands before all of them, at the top


def test_labels_of_rounds_do_not_run_into_each_other() -> None:
    borders = [(10.0 * n, f"round {n + 1}") for n in range(12)]
    drawing = Drawing(draw(chart_of(*range(120), borders=borders)))
    places = [x for text, (x, _) in drawing.texts.items() if text.startswith("round")]
    assert len(drawing.shapes("border")) == 11
    assert len(places) == 6
    assert min(np.diff(places)) > 40
    assert max(places) < 360 - 40


def test_drawing_is_the_same_each_time_and_asks_for_no_style_of_its_own() -> None:
    svg = draw(chart_of(-0.25, 0.5))
    assert svg == draw(chart_of(-0.25, 0.5))
    assert not re.search(r"<style|<metadata|style=|stroke|fill|xmlns|xlink|http", svg)
    matplotlib.rcParams.update({"font.size": 30, "axes.unicode_minus": False})
    try:
        assert draw(chart_of(-0.25, 0.5)) == svg
        assert matplotlib.rcParams["font.size"] == 30
    finally:
        matplotlib.rcdefaults()


def test_matplotlib_is_loaded_by_drawing_only_and_pyplot_never() -> None:
    lines = (
        "import sys",
        "from openrlhf_dynamicrubric import cli, report",
        "from openrlhf_dynamicrubric.report.plots import Chart, Line, draw",
        "assert 'matplotlib' not in sys.modules",
        "draw(Chart('t', '', [Line('a', [(0, 1.0)])]))",
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_names_in_a_chart_are_text() -> None:
    names = [*HOSTILE, UNSEEN, "$x$ \\frac"]
    for name in names:
        drawing = Drawing(draw(Chart(name, "", [Line(name, [(0, 1.0), (1, 2.0)])])))
        assert str(drawing.root.get("aria-label")).startswith(visible(name))
        assert {e.tag for e in drawing.root.iter()} == {"svg", "g", "path", "defs", "use", "text", "title"}


def test_the_trainers_log_is_drawn_at_its_own_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=2, steps=3)
    for number, rate in ((1, 5.0), (2, 7.0)):
        metrics = run / f"round-{number:02d}" / "train-policy" / "records" / "metrics.jsonl"
        row = {"kind": "metrics", "rate": rate, "huge": 10**400, "nothing": None, "still": 0.5}
        rows = [{**row, "step": step, "\ud800\u202e": 1.0 * step} for step in (1, 2, 3)]
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_run(run)
    (_, measures, phases) = kinds(data)[1]
    main_charts, others, constant = charts(track(data, phases), measures)
    drawn = {chart.title: chart.lines[0].points for chart in others}
    assert drawn.keys() == {"rate", "\ud800\u202e"}
    assert drawn["rate"] == [(0, 5), (1, 5), (2, 5), (3, 7), (4, 7), (5, 7)]
    assert [step for step, _ in main_charts[0].borders] == [0, 3]
    assert constant == [("still", "0.5")]
    page = page_of(run)
    assert "The same at every step: still 0.5." in page.flat
    assert any("⟨U+D800⟩⟨U+202E⟩: " in str(a.get("aria-label")) for tag, a in page.tags if tag == "svg")


def test_thinning_keeps_the_mean() -> None:
    points = [(float(x), float(x % 7)) for x in range(1200)]
    thinned = thin(points)
    assert len(thinned) == 120
    assert np.mean([y for _, y in thinned]) == pytest.approx(np.mean([y for _, y in points]))


def test_command_prints_the_page_and_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records_of(tmp_path / "run", [scored([[1, 0]])])
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "out.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out.html'}\n"
    with pytest.raises(DataError, match="cannot be written"):
        main([str(tmp_path / "run"), "--output", str(tmp_path / "out.html" / "x.html")])


def test_unseen_characters_show_as_their_codes() -> None:
    assert visible("a\tb\r\nc") == "a\tb\nc"
    assert visible("\r\u2066\ufeff\ud800") == "⟨U+000D⟩⟨U+2066⟩⟨U+FEFF⟩⟨U+D800⟩"
    assert visible("família 日本 👩‍🔬 שלום") == "família 日本 👩‍🔬 שלום"
    assert one_line("a\n\n b\x1b" + "c" * 50, 12) == "a b⟨U+001B⟩…"
