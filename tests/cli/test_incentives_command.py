"""`fedadmm incentives`: the game alone, and the reward that buys a target cheapest."""

import json
import tomllib

import pytest

from support.commands import call, write_small

TARGET = [
    "--set",
    "target.metric=loss",
    "--set",
    "target.value=1e9",
    "--set",
    "target.at_least=false",
]


def found(*arguments):
    result = call("incentives", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_game_alone_needs_no_run():
    document = found("--costs", "1", "--clients", 20, "--rewards", "1.9,1.91")
    assert document["critical_reward"] == pytest.approx(40 / 21)
    below, above = document["rewards"]
    assert below["mean_effort"] == pytest.approx(1)
    assert above["mean_effort"] == pytest.approx(10)
    assert below["payment"] == pytest.approx(1.9 * 1 * 20)
    assert "critical reward" in call("incentives", "--clients", 5).stdout.lower()


def test_every_reward_is_run_with_the_epochs_that_it_buys(tmp_path):
    config = write_small(tmp_path / "small.toml")
    document = found(
        config, "--costs", "1", "--rewards", "0.1,50", "--out", tmp_path / "out", *TARGET
    )
    cheap, dear = document["rewards"]
    assert cheap["mean_effort"] == 1
    assert dear["mean_effort"] == 10
    assert cheap["rounds_to_target"] == dear["rounds_to_target"] == 1
    assert cheap["bill"] == pytest.approx(cheap["payment"])
    assert document["cheapest"] == 0.1
    configs = [tomllib.loads(p.read_text()) for p in (tmp_path / "out").rglob("config.toml")]
    assert {one["local"]["stop"]["reward"] for one in configs} == {0.1, 50.0}
    assert {one["local"]["stop"]["name"] for one in configs} == {"rational-epochs"}


def test_clients_that_are_not_asked_are_not_paid(tmp_path):
    config = write_small(tmp_path / "small.toml")
    options = ("--costs", "1", "--rewards", "0.1", *TARGET)
    everyone = found(config, *options, "--set", "sampler.name=full", "--out", tmp_path / "a")
    some = found(
        config, *options, "--set", "sampler={name='uniform', size=0.5}", "--out", tmp_path / "b"
    )
    share = some["rewards"][0]["payment"] / everyone["rewards"][0]["payment"]
    assert share == pytest.approx(0.5)


def test_mistakes_are_named(tmp_path):
    config = write_small(tmp_path / "small.toml")
    for arguments, words in [
        (["--costs", "a"], "--costs is 'a', but must be a number, LOW:HIGH, or one number per"),
        (["--costs", "1,2,3", "--clients", 4], "--costs has 3 numbers, but must have one per"),
        (["--rewards", "x"], "--rewards is 'x', but must be numbers such as 0.5,1"),
        (["--rewards", "-1"], "reward is -1.0, but must be > 0"),
        ([config, "--clients", 3], "--clients is 3, but CONFIG says how many there are"),
        ([config], "target is missing, but the rounds to it make up the bill"),
    ]:
        result = call("incentives", *arguments)
        assert result.exit_code == 2, (arguments, result.stderr)
        assert words in " ".join(result.stderr.replace("│", " ").split())
