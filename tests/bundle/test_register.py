"""Releases under a register: charged before the first record is read, given back unread, told on the card."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import airlock
from airlock import data, pipeline
from airlock.accounting import from_json
from airlock.bundle import Vault, booking, bundle, gate, register
from airlock.bundle.register import RegisterPlace, account, find
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.config import from_table
from airlock.data import Records, Split
from airlock.errors import AirlockError, AirlockWarning, ConfigError, LedgerBroken, Refused
from airlock.pipeline import make_release, plan_in_register
from airlock.training.distributed import Group

BUDGET = {"epsilon": 4.0, "delta": 1e-4}


class Killed(BaseException):
    """Stands for SIGKILL: nothing that handles errors handles it, and what is on disk is what counts."""


def config(**changes: Any) -> airlock.ReleaseConfig:
    table = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, "net": "linear",
             "settings": {"steps": 2}}  # fmt: skip
    return from_table({**table, **changes})


class House:
    """A folder with a vault and a register of 4.0 for the digits."""

    def __init__(self, folder: Path, place: str = "") -> None:
        self.folder, self.vault = folder, Vault.open(folder / "vault")
        self.place = RegisterPlace(place or str(folder / "digits.db"), "the config")
        register.create(self.place.place, self.vault, "digits", **BUDGET).close()

    def config(self, **changes: Any) -> airlock.ReleaseConfig:
        return config(**{"register": self.place.place, **changes})

    def release(self, name: str = "bundle", **options: Any) -> pipeline.Outcome:
        changes = options.pop("changes", {})
        return make_release(self.config(**changes), self.folder / name, vault=self.vault.root, **options)

    def account(self) -> register.Account:
        return account(self.place, self.vault)

    def states(self) -> list[str]:
        return [one.state for one in self.account().charged]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_release_is_counted_and_its_card_says_so(house: House) -> None:
    made = house.release(changes={"recipient": "Ann"})
    found = house.account()
    (one,) = found.charged
    card = made.bundle.card
    assert (one.state, one.release, one.about["recipient"]) == ("released", card.release_id, "Ann")
    assert card.lifetime is not None
    assert (card.lifetime.cost, card.lifetime.spent) == (one.units, found.spent)
    assert (card.total.epsilon, card.total.delta) == (found.budget.so_far(found.spent), 1e-4)
    assert "counted in the register" in card.words.others
    assert found.budget.cost([from_json(card.guarantee.events)]) == one.units, "the figures of the card cost no more"
    assert verify(made.bundle.folder, house.vault).ok
    assert list((house.vault.root / "checkpoints").glob("*.reservation")) == [], "the key of the noise is gone"


def test_a_bundle_says_nothing_of_the_register_beyond_its_budget(house: House) -> None:
    house.release("first", changes={"recipient": "Ann Example"})
    made = house.release("second", changes={"recipient": "Bob Example", "seed": 1})
    left = b"".join(path.read_bytes() for path in made.bundle.folder.iterdir())
    for private in (b"Example", b"digits.db", house.account().charged[0].release.encode()):  # type: ignore[union-attr]
        assert private not in left
    assert set(tomllib.loads((made.bundle.folder / "config.toml").read_text())) & {"register", "recipient"} == set()


def charged_before_the_first_record_is_read(folder: Path) -> None:
    """The reservation is on disk, and marked as started, when `data.load` is called; a planted fault's check too."""
    house, seen = House(folder), []
    load = data.load

    def watched(*arguments: Any) -> Split:
        seen.append(house.states())
        return load(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", watched)
        house.release()
    assert seen == [["started"]], seen


def test_charged_before_the_first_record_is_read(tmp_path: Path) -> None:
    charged_before_the_first_record_is_read(tmp_path)


def test_a_process_that_assists_reads_after_the_lead_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, group = [], Group(rank=1, world=2)

    def read(*_: object) -> None:
        seen.append("read")
        raise Killed

    monkeypatch.setattr(group, "send", lambda content: seen.append("told"))
    monkeypatch.setattr(data, "load", read)
    with pytest.raises(Killed):
        pipeline.assist_release(config(), group)
    assert seen == ["told", "read"]


def test_what_never_read_a_record_is_given_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuted(*_: object) -> None:
        assert house.states() == ["reserved"]
        raise Refused("a configuration that stands in court", "another")

    monkeypatch.setattr(pipeline, "_short_court", refuted)
    with pytest.raises(Refused, match="court"):
        house.release()
    assert house.states() == ["returned"]
    assert house.account().spent == 0
    (house.folder / "taken").mkdir()
    with pytest.raises(AirlockError, match="does not exist yet"):
        house.release("taken")
    assert house.states() == ["returned"], "an output that cannot be written is found before anything is charged"


def test_a_vault_that_cannot_be_written_is_found_before_a_record_is_read(house: House) -> None:
    house.account()
    (house.vault.root / "checkpoints").write_text("not a folder")
    with pytest.raises(AirlockError, match="checkpoints"):
        house.release()
    assert house.states() == ["returned"]


def test_what_failed_after_reading_stays_charged(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("a disk that is full")

    monkeypatch.setattr(pipeline, "_attacked", fails)
    with pytest.raises(OSError, match="full"):
        house.release()
    assert house.states() == ["started"]
    assert house.account().spent > 0


def killed_at(owner: Any, name: str, house: House) -> None:
    """A release that dies where this would be called."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, killed)
        patch.setattr(booking.Booking, "__exit__", lambda *_: None)  # a killed process tidies nothing up
        with pytest.raises(Killed):
            house.release()


STEPS: dict[str, tuple[Any, str, str | None]] = {
    "reserve": (booking, "_reserved", None),
    "the key is kept": (booking, "replace_file", "reserved"),
    "start": (booking.Booking, "start", "reserved"),
    "read": (pipeline, "_load", "started"),
    "train": (pipeline, "_attacked", "started"),
    "release": (booking.Booking, "release", "started"),
    "record": (Vault, "record", "released"),
    "forget": (booking.Booking, "forget", "released"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_any_step_leaves_charged_what_may_be_spent(house: House, step: str) -> None:
    owner, name, state = STEPS[step]
    killed_at(owner, name, house)
    assert house.states() == ([] if state is None else [state])
    assert (house.account().spent > 0) == (state is not None)
    assert (house.folder / "bundle").exists() == (step == "forget"), "what left was counted before"


def weights(made: pipeline.Outcome) -> bytes:
    return (made.bundle.folder / "model.safetensors").read_bytes()


def a_resumed_run_draws_the_same_noise_or_pays_again(folder: Path) -> None:
    """Killed just before it leaves: the resumed run is the same, bit for bit, and goes on with its own charge."""
    house, kept = House(folder), []
    written = bundle.write

    def watched(out: Path, *arguments: Any, **options: Any) -> Any:
        kept.append(arguments[1].network.net.state_dict())
        return written(out, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "write", watched)
        killed_at(booking.Booking, "release", house)
        once = house.account().spent
        house.release(resume=True)
    same = all(bool((kept[0][name] == kept[1][name]).all()) for name in kept[0])
    charged = house.account().spent
    assert charged >= once * (1 if same else 2), "noise that is drawn anew is paid for anew"
    assert (same, charged) == (True, once)
    assert house.states() == ["released"]


def test_a_resumed_run_draws_the_same_noise_and_is_charged_once(tmp_path: Path) -> None:
    a_resumed_run_draws_the_same_noise_or_pays_again(tmp_path)


def test_a_plan_says_that_an_unfinished_run_is_charged_already(house: House) -> None:
    def told(**changes: Any) -> booking.Outlook:
        found = pipeline.plan_in_register(house.config(**changes), vault=house.vault.root)[1]
        assert found is not None
        return found

    new = told()
    assert not new.resumes
    assert ": this would cost" in new.sentence()
    killed_at(booking.Booking, "release", house)
    held = told()
    assert held.resumes
    assert (held.cost, held.left) == (new.cost, new.left - new.cost)
    assert "charged already: --resume goes on with it at no cost. A new one would cost" in held.sentence()
    assert not told(seed=1).resumes, "another run"
    house.release(resume=True)
    assert not told().resumes, "it is finished"


def test_a_run_whose_key_is_gone_is_charged_again(house: House) -> None:
    killed_at(booking.Booking, "release", house)
    (kept,) = (house.vault.root / "checkpoints").glob("*.reservation")
    kept.unlink()
    house.release(resume=True)
    assert house.states() == ["started", "released"]


def test_a_run_of_another_version_is_charged_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(booking.Booking, "release", house)
    monkeypatch.setattr(booking, "VERSION", "0.0.0")
    house.release(resume=True)
    assert house.states() == ["started", "released"]


@pytest.mark.parametrize("step", ["start", "read", "train", "release"])
def test_whoever_begins_anew_is_asked_before_paying_again(
    house: House, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, state = STEPS[step]
    killed_at(owner, name, house)
    with monkeypatch.context() as patch:
        patch.setattr(data, "load", lambda *_: pytest.fail("a record was read"))
        with pytest.raises(Refused, match=r"unfinished run of the same config.*--resume.*--again"):
            house.release()
    assert house.states() == [state], "charged once"
    house.release(again=True)
    assert house.states() == [state, "released"]
    house.release("another")  # a finished run asks nobody
    assert house.states() == [state, "released", "released"]


def test_a_run_whose_config_differs_is_another(house: House) -> None:
    killed_at(booking.Booking, "release", house)
    house.release(changes={"seed": 4})
    assert house.states() == ["started", "released"]


def test_what_was_killed_after_its_entry_is_charged_again_when_resumed(house: House) -> None:
    killed_at(Vault, "record", house)
    house.release(resume=True)
    assert house.states() == ["released", "released"]


def test_over_the_cap_is_refused_before_a_record_is_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("a record was read"))
    with pytest.raises(Refused, match=r"would pay for Gaussian noise of about ε = 3\.") as refused:
        house.release(changes={"epsilon": 8.0})
    assert "what is left of 4 for 'digits'" in str(refused.value)
    assert house.states() == []


def test_a_plan_says_what_would_be_left(house: House) -> None:
    _, before = plan_in_register(house.config(), vault=house.vault.root)
    assert before is not None
    assert before.fits
    assert before.left == 4.0
    house.release()
    _, after = plan_in_register(house.config(), vault=house.vault.root)
    assert after is not None
    assert after.left == pytest.approx(before.left - before.cost)
    assert "of 4." in after.sentence()
    assert house.states() == ["released"], "a plan charges nothing"


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"insecure_seed": 1}, "secret noise"),
        ({"method": "published", "settings": {}}, {"accept_unproven": True}, "proven guarantee for one record"),
    ],
)
def test_what_cannot_be_counted_is_refused(house: House, changes: Any, options: Any, said: str) -> None:
    with pytest.raises(AirlockError, match=said):
        house.release(changes=changes, **options)
    assert house.states() == []


def test_each_data_set_has_its_own_register(house: House) -> None:
    other = RegisterPlace(str(house.folder / "other.db"), "the config")
    register.create(other.place, house.vault, "other people", **BUDGET).close()
    with pytest.raises(ConfigError, match="data named 'other people'"):
        house.release(changes={"register": other.place})
    assert account(other, house.vault).charged == ()


def test_a_bundle_from_before_is_added_once(house: House) -> None:
    made = make_release(config(), house.folder / "before", vault=house.vault.root)
    assert made.bundle.card.lifetime is None
    with pytest.raises(ConfigError, match="no --composes-with"):
        house.release(composes_with=[house.folder / "before"])
    cost = booking.add(house.place, house.vault, made.bundle.card, "Ann")
    found = house.account()
    assert cost == found.budget.share(found.spent) > 0
    assert [one.release for one in found.charged] == [made.bundle.card.release_id]
    with pytest.raises(Refused, match="not counted yet"):
        booking.add(house.place, house.vault, made.bundle.card)


def test_a_service_of_what_is_not_counted_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    made = house.release()
    monkeypatch.setenv("AIRLOCK_REGISTER", house.place.place)
    register.check_served(made.bundle.card.release_id, house.vault)
    with pytest.raises(Refused, match="register add"):
        register.check_served("0" * 32, house.vault)


def test_the_whole_budget_of_answers_is_charged_when_they_are_released(house: House) -> None:
    """The events of the release are those of every answer that can ever be bought: serving charges nothing more."""
    asked = house.config(channel="answers", method="votes", net="auto", settings={"queries": 20, "heads": 60})
    plan, told = plan_in_register(asked, vault=house.vault.root)
    assert told is not None
    assert plan.guarantee.events.count == 20
    once = plan_in_register(
        asked.model_copy(update={"settings": {"queries": 10, "heads": 60}}), vault=house.vault.root
    )[0]
    assert once.guarantee.events.count == 10


def test_records_that_changed_are_told_and_never_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.release("first")
    load = data.load

    def grown(*arguments: Any) -> Split:
        split = load(*arguments)
        one = Records(np.zeros_like(split.private.x[:1]), np.zeros(1, np.int64))
        both = Records(np.concatenate([split.private.x, one.x]), np.concatenate([split.private.y, one.y]))
        return replace(split, private=both)

    monkeypatch.setattr(data, "load", grown)
    with pytest.warns(AirlockWarning, match="not those of the last release"):  # on the holder's terminal
        made = house.release("second")
    assert any("not those of the last release" in said for said in house.vault.remarks(made.bundle.card.release_id))
    again = house.release("third", changes={"seed": 2})
    assert not any("not those" in said for said in house.vault.remarks(again.bundle.card.release_id)), "parts differ"


def test_records_of_a_register_are_known_without_it(house: House) -> None:
    house.release("first")
    with pytest.warns(AirlockWarning, match="does not count this release"):
        made = make_release(config(), house.folder / "second", vault=house.vault.root)
    told = house.vault.remarks(made.bundle.card.release_id)
    assert any("whose register does not count this release" in said for said in told)


def test_a_second_register_of_the_same_data_is_refused(house: House) -> None:
    with pytest.raises(LedgerBroken):
        register.create(str(house.folder / "other.db"), house.vault, "digits", **BUDGET)
    with pytest.raises(ConfigError, match="without a register"):
        register.create(house.place.place, house.vault, "digits", **BUDGET)
    assert [one.data for one in register.known_registers(house.vault)] == ["digits"]


def test_a_copy_of_an_earlier_day_is_refused(house: House) -> None:
    house.account()
    copy = Path(house.place.place).read_bytes()
    house.release()
    for more in ("", "-wal", "-shm"):
        Path(house.place.place + more).unlink(missing_ok=True)
    Path(house.place.place).write_bytes(copy)
    with pytest.raises(LedgerBroken):
        house.release("again")


def test_who_says_where_the_register_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIRLOCK_REGISTER", raising=False)
    assert find(config()) is None
    (tmp_path / "project.db").touch()
    (tmp_path / "airlock.toml").write_text('register = "project.db"')
    assert str(find(config())) == f"{tmp_path / 'project.db'} (from airlock.toml)"
    monkeypatch.setenv("AIRLOCK_REGISTER", "postgresql://ann:secret@host/db")
    assert str(find(config())) == "postgresql://ann@host/db (from AIRLOCK_REGISTER)"
    assert str(find(config(register="mine.db"))) == "mine.db (from the config)"
    (tmp_path / "airlock.toml").write_text("registers = 1")
    monkeypatch.delenv("AIRLOCK_REGISTER")
    with pytest.raises(ConfigError, match="register"):
        find(config())


@pytest.mark.parametrize("edit", [{"cost": 1}, {"spent": 10**7}, {"epsilon": 0.001}, {"order": 900}])
def test_a_forged_budget_on_a_card_is_found(house: House, edit: dict[str, Any]) -> None:
    from airlock.bundle.consistency import _total

    card = house.release().bundle.card
    assert card.lifetime is not None
    forged = card.model_copy(update={"lifetime": card.lifetime.model_copy(update=edit)})
    assert _total(card) == []
    assert _total(forged)


def test_the_fingerprint_depends_on_records_alone(house: House) -> None:
    split, key = data.load(config()), bytes(32)
    order = np.random.default_rng(0).permutation(len(split.private))
    shuffled = replace(split, private=split.private.take(order))
    moved = replace(split, private=split.private.take(np.arange(1, len(split.private))),
                    test=_joined(split.test, split.private.take(np.arange(1))))  # fmt: skip
    fewer = replace(split, private=split.private.take(np.arange(1, len(split.private))))
    mine = register._fingerprint(split, key)
    assert register._fingerprint(shuffled, key) == register._fingerprint(moved, key) == mine
    assert len({mine, register._fingerprint(fewer, key), register._fingerprint(split, b"1" * 32)}) == 3


def _joined(one: Records, other: Records) -> Records:
    return Records(np.concatenate([one.x, other.x]), np.concatenate([one.y, other.y]))


# The gate, which says what the register does.


def weighed(folder: Path, vault: Path, *, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["gate", str(folder), "--vault", str(vault), "--json"])
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def about_register(found: dict[str, Any], kind: str) -> list[str]:
    return [line for line in found[kind] if "register" in line]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somewhere without a register."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(register.VARIABLE, raising=False)
    return tmp_path


def test_the_gate_says_that_a_release_is_counted_and_what_is_left(
    house: House, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = house.release()
    known = weighed(made.bundle.folder, house.vault.root)  # by the vault alone
    (line,) = about_register(known, "release")
    left = house.account().left
    assert f"{math.floor(100 * left) / 100:.2f} of 4 is left" in line
    assert "(from the vault)" in line
    assert about_register(known, "caution") == []
    monkeypatch.setenv(register.VARIABLE, house.place.place)
    (line,) = about_register(weighed(made.bundle.folder, house.vault.root), "release")
    assert "(from AIRLOCK_REGISTER)" in line


def test_the_gate_cautions_of_a_release_that_the_register_of_its_data_does_not_count(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = make_release(config(), elsewhere / "early", vault=elsewhere / "vault")
    assert about_register(weighed(early.bundle.folder, elsewhere / "vault"), "caution") == []
    house = House(elsewhere)
    (line,) = about_register(weighed(early.bundle.folder, house.vault.root), "caution")
    assert "does not count this release. If it came from these data" in line
    booking.add(house.place, house.vault, early.bundle.card)
    assert about_register(weighed(early.bundle.folder, house.vault.root), "caution") == []
    other = House(elsewhere / "other")  # it has a register of its own, under the same name
    counted = house.release("counted", changes={"seed": 3})
    (line,) = about_register(weighed(counted.bundle.folder, other.vault.root), "caution")
    assert "although the card says so" in line


def test_the_gate_at_a_receiver_says_what_it_cannot_know_and_writes_nothing(house: House, elsewhere: Path) -> None:
    made = house.release(changes={"recipient": "Ann Example"})
    at_receiver = elsewhere / "receiver"
    found = weighed(made.bundle.folder, at_receiver)
    assert about_register(found, "caution") == [gate.NOT_HERE]
    assert about_register(found, "release") == []
    assert not at_receiver.exists()
    assert "Example" not in json.dumps(found)


def test_a_register_that_cannot_be_read_is_a_caution_and_no_error(
    house: House, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = house.release()
    (elsewhere / "digits.db").rename(elsewhere / "gone.db")
    (line,) = about_register(weighed(made.bundle.folder, house.vault.root), "caution")
    assert "could not be read" in line
    (elsewhere / "airlock.toml").write_text("regsiter = 3\n")
    (line,) = about_register(weighed(made.bundle.folder, house.vault.root), "caution")
    assert "could not be read" in line
    other = RegisterPlace(str(elsewhere / "people.db"), "the config")
    register.create(other.place, house.vault, "people", **BUDGET).close()
    (elsewhere / "airlock.toml").write_text('register = "people.db"\n')  # of other data: the vault knows theirs
    (elsewhere / "gone.db").rename(elsewhere / "digits.db")
    assert len(about_register(weighed(made.bundle.folder, house.vault.root), "release")) == 1


def test_a_register_that_charged_something_else_is_a_caution(house: House) -> None:
    made = house.release()
    found = register.counting("digits", made.bundle.card.release_id, house.vault)
    assert found is not None
    assert found.units == house.account().charged[0].units
    less = replace(found, units=found.units - 1)
    (line,) = [one for one in gate.weigh(made.bundle.card, (), counting=less).caution if "register" in one]
    assert line.endswith("The card states another cost.")
    assert register.counting("people", made.bundle.card.release_id, house.vault) is None
