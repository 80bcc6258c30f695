"""Plans: from YAML and options; every mistake names the place, the value and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError, ExitCode
from harness.plan import Plan, load_plan, make_plan

LEAST = {"model": "m.onnx", "calib": "c.npz"}

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(**values: Any) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        make_plan({**LEAST, **values})
    assert raised.value.exit_code == ExitCode.USAGE
    return raised.value


class TestValues:
    def test_defaults(self) -> None:
        plan = make_plan(LEAST)
        assert (plan.boards, plan.preset, plan.top_k, plan.objective, plan.seed) == (
            ("local",),
            "quick",
            3,
            "pareto",
            0,
        )
        assert (plan.min_snr, plan.batch, plan.scope, plan.trials) == (None, 1, "inference", None)

    def test_texts_become_numbers(self) -> None:
        plan = make_plan(
            {**LEAST, "max_latency": "8ms", "max_size": "500kB", "budget": "10m", "max_time": "1h", "boards": " a , b,"}
        )
        assert plan.max_latency == 8_000_000
        assert plan.max_size == 500_000
        assert plan.budget == 600 * 10**9
        assert plan.max_time == 3600 * 10**9
        assert plan.boards == ("a", "b")

    def test_it_does_not_change(self) -> None:
        plan = make_plan(LEAST)
        with pytest.raises(ValueError, match="frozen"):
            plan.seed = 3  # type: ignore[misc]

    def test_its_json_is_itself(self) -> None:
        plan = make_plan({**LEAST, "max_latency": "8ms", "set_dim": {"n": 3}, "metrics": "top1,snr"})
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    @pytest.mark.parametrize("number", [0.9, 1, -0.01])
    def test_an_accuracy_may_be_a_number(self, number: float) -> None:
        assert make_plan({**LEAST, "min_accuracy": number}).min_accuracy == str(number)


class TestRefused:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"boards": ""}, "name at least one board"),
            ({"boards": "a,b,a"}, "'a' is named twice"),
            ({"trials": 2, "top_k": 3}, "3 candidates cannot be picked from 2 trials"),
            ({"postprocess": "argmax"}, "postprocess: argmax is timed only with --scope pipeline"),
            ({"trials": 0}, "trials"),
            ({"top_k": 0}, "top_k"),
            ({"budget": "0s"}, "budget"),
            ({"budget": "10"}, "is not a duration"),
            ({"max_time": "0m"}, "max_time"),
            ({"max_latency": "fast"}, "'fast' is not a duration"),
            ({"max_latency": "0ms"}, "max_latency"),
            ({"max_size": "big"}, "'big' is not a size"),
            ({"max_size": "0"}, "max_size"),
            ({"max_size": "0B"}, "max_size"),
            ({"max_size": 500}, "500 has no unit: write 500kB"),
            ({"max_size": "500"}, "500 has no unit: write 500kB"),
            ({"max_memory": 1.5}, "1.5 has no unit: write 1.5kB"),
            ({"max_latency": 8}, "8 has no unit: write 8ms"),
            ({"max_latency": 0.5}, "0.5 has no unit: write 0.5ms"),
            ({"budget": True}, "yes/no"),
            ({"max_size": True}, "yes/no"),
            ({"min_accuracy": True}, "yes/no"),
            ({"trials": True}, "yes/no"),
            ({"set_dim": {"n": True}}, "set_dim"),
            ({"objective": "speed"}, "'latency', 'accuracy' or 'pareto'"),
            ({"sampler": "tpee"}, "sampler"),
            ({"seed": -1}, "seed"),
            ({"min_offload": 1.5}, "min_offload"),
            ({"min_snr": "loud"}, "min_snr"),
            ({"min_snr": float("nan")}, "min_snr"),
            ({"set_dim": {"n": 0}}, "set_dim"),
            ({"batch": 0}, "batch"),
            ({"window": 0}, "window"),
            ({"scope": "all"}, "scope"),
        ],
    )
    def test_values(self, values: dict[str, Any], message: str) -> None:
        assert message in refused(**values).message

    def test_the_value_is_told(self) -> None:
        assert "got 'fast'" in refused(max_latency="fast").message

    def test_all_mistakes_at_once(self) -> None:
        message = refused(seed=-1, batch=0).message
        assert "seed" in message
        assert "batch" in message

    def test_unknown_keys(self) -> None:
        assert "did you mean 'max_latency'?" in refused(max_latancy="8ms").hint
        assert "known: model, calib" in refused(zzzzz=1).hint

    @pytest.mark.parametrize("missing", ["model", "calib"])
    def test_what_is_needed(self, missing: str) -> None:
        values = {k: v for k, v in LEAST.items() if k != missing}
        with pytest.raises(ConfigError, match=missing):
            make_plan(values)


class TestFiles:
    def test_paths_are_relative_to_the_file(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "model: m.onnx\ncalib: data/c.npz\neval: /abs/e.npz\npreprocess: p.yaml\nrecipes: [r.json, /abs/r.json]\n",
        )
        plan = load_plan(path, {})
        assert plan.model == tmp_path / "m.onnx"
        assert plan.calib == str(tmp_path / "data/c.npz")
        assert plan.eval == "/abs/e.npz"
        assert plan.preprocess == tmp_path / "p.yaml"
        assert plan.recipes == (tmp_path / "r.json", Path("/abs/r.json"))

    def test_module_and_function_is_no_path(self, tmp_path: Path) -> None:
        plan = load_plan(write(tmp_path, "model: m.onnx\ncalib: my.data:batches\n"), {})
        assert plan.calib == "my.data:batches"

    def test_options_win_and_are_relative_to_where_they_were_given(self, tmp_path: Path) -> None:
        path = write(tmp_path, "model: m.onnx\ncalib: c.npz\nseed: 1\nbudget: 5m\n")
        plan = load_plan(path, {"seed": 7, "model": "other.onnx"})
        assert (plan.seed, plan.model, plan.budget) == (7, Path("other.onnx"), 300 * 10**9)

    @pytest.mark.parametrize("written", ["0.9", "-0.01", "+0.02", "-0.5pp"])
    def test_an_accuracy_is_what_is_written(self, tmp_path: Path, written: str) -> None:
        """YAML takes the sign off +0.02, which then would not be against float any more."""
        plan = load_plan(write(tmp_path, f"model: m.onnx\ncalib: c.npz\nmin_accuracy: {written}\n"), {})
        assert plan.min_accuracy == written

    def test_preprocessing_may_be_inside(self, tmp_path: Path) -> None:
        plan = load_plan(write(tmp_path, "model: m.onnx\ncalib: c.npz\npreprocess: {scale: 1/255}\n"), {})
        assert plan.preprocess == {"scale": "1/255"}

    def test_the_example(self) -> None:
        plan = load_plan(Path(__file__).parents[1] / "examples" / "fashion_mnist" / "plan.yaml", {})
        assert plan.model.is_file()
        assert Path(plan.calib).is_file()

    @pytest.mark.parametrize(
        ("text", "line", "message"),
        [
            ("model: m.onnx\ncalib: [c\n", 3, "not YAML"),
            ("model: m.onnx\ncalib: c.npz\n\nsampeler: tpe\n", 4, "unknown key 'sampeler'"),
            ("model: m.onnx\ncalib: c.npz\nseed: minus one\n", 3, "seed"),
            ("model: m.onnx\ncalib: c.npz\nboards: a,a\n", 3, "'a' is named twice"),
            ("model: m.onnx\ncalib: c.npz\ntop_k: 9\ntrials: 3\n", 3, "9 candidates cannot be picked"),
            ("model: m.onnx\nmodel: n.onnx\ncalib: c.npz\n", 2, "model"),
            ("model: m.onnx\ncalib: c.npz\nset_dim:\n  n: 0\n", 4, "set_dim.n"),
            ("model: m.onnx\ncalib: c.npz\nmax_latency: 8\n", 3, "write 8ms"),
            ("model: m.onnx\ncalib: c.npz\nmin_accuracy: yes\n", 3, "yes/no"),
        ],
    )
    def test_mistakes_have_a_line(self, tmp_path: Path, text: str, line: int, message: str) -> None:
        path = write(tmp_path, text)
        with pytest.raises(ConfigError) as raised:
            load_plan(path, {})
        assert raised.value.where == f"{path}:{line}"
        assert message in raised.value.message

    def test_a_mistake_in_an_option_is_not_blamed_on_the_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, "model: m.onnx\ncalib: c.npz\nseed: 1\n")
        with pytest.raises(ConfigError) as raised:
            load_plan(path, {"seed": -1})
        assert str(path) not in raised.value.where

    @pytest.mark.parametrize("text", ["", "- model\n", "just text\n", "null\n"])
    def test_no_mapping(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match="the plan must be a mapping"):
            load_plan(write(tmp_path, text), {})

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot read the plan"):
            load_plan(tmp_path / "none.yaml", {})
        with pytest.raises(ConfigError, match="cannot read the plan"):
            load_plan(tmp_path, {})

    def test_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "plan.yaml").write_bytes(b"\xff\xfe\x00model")
        with pytest.raises(ConfigError):
            load_plan(tmp_path / "plan.yaml", {})

    @given(ANYTHING, st.sampled_from(sorted(Plan.model_fields)))
    def test_any_value_is_taken_or_refused_in_words(
        self, tmp_path_factory: pytest.TempPathFactory, value: Any, key: str
    ) -> None:
        path = write(tmp_path_factory.mktemp("plans"), yaml.safe_dump({**LEAST, key: value}))
        told = str(path)
        try:
            load_plan(path, {})
        except ConfigError as error:
            told = str(error)
        assert str(path) in told
