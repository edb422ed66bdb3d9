"""Steps, drafts and effects: rules for every step of the machine."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import record_id
from endwell.model.effect import Effect
from endwell.model.inside import family_of, inside_of
from endwell.policy import ledger
from tests.machine.walk.step import Step
from tests.machine.walk.violation import must

VERDICTS: Final = {"done": "done", "not_done": "not_done", "abandon": "abandoned"}


def a_record_lies_where_its_step_is_looked_for(step: Step) -> None:
    recorded = [fact for fact in step.decision.facts if isinstance(fact, f.StepRecorded)]
    must(len(recorded) <= 1, "two records at once")
    for fact in recorded:
        must(isinstance(step.command, c.RecordStep | c.FinishEffect | c.IntendEffect), "a strange record")
        cards = [card for card in step.decision.cards if card.id == record_id(step.before.id, fact.step)]
        is_kept = not isinstance(step.command, c.RecordStep) or step.command.content is not None
        must(len(cards) == is_kept, "a record without a card, or a card without content")
        must(fact.card == (cards[0].id if cards else None), "a record that names another card")


def recorded_work_is_believed_until_an_output_is_refused(step: Step) -> None:
    before, after = inside_of(step.before), inside_of(step.after)
    is_refused = isinstance(step.command, c.FailTurn) and step.command.error.code == "bad_result"
    if is_refused and step.moves and not step.after.is_ended:
        must((after.run, after.steps) == (before.run + 1, 0), "a refused output keeps its run")
    else:
        must(after.run == before.run, f"a new run after {type(step.command).__name__}")
        must(after.steps >= before.steps, "recorded steps were forgotten")
    must(after.draft is not None or before.draft is None, "a draft was forgotten")
    must(after.children >= before.children, "children were forgotten")


def an_open_step_keeps_its_time(step: Step) -> None:
    if step.after.status != "running" or step.before.attempt_id != step.after.attempt_id:
        return
    open_steps = {name for name, _ in inside_of(step.after).doing}
    allowed = [until for name, until in inside_of(step.before).doing if name in open_steps]
    is_covered = step.after.progress_by is not None and step.after.progress_by >= max(allowed, default=0)
    must(is_covered, "a long step would be reaped although its own time is not over")


def only_the_ledger_lets_an_effect_run(step: Step) -> None:
    """An effect's function is called after `AllowExecute`: once, and again only after "not done"."""
    if not isinstance(step.command, c.IntendEffect):
        must(step.decision.ledger is None, "the ledger answered who did not ask")
        must(step.count(f.EffectIntended) == 0, "an intent without a request")
        return
    if not step.holds:
        return
    key = step.command.key
    row = step.scene_before.effect(key)
    answer = step.decision.ledger
    must(type(answer) is _right_answer(step, row), f"{answer} while the effect is {row and row.status}")
    must(step.count(f.EffectIntended) == isinstance(answer, ledger.AllowExecute), "intent and answer differ")
    if isinstance(answer, ledger.AllowExecute):
        written = step.scene_after.effect(key)
        until = step.now + step.command.timeout
        must(written is not None and written.status == "intended", "executed without an intent")
        must(written is not None and written.attempt_id == step.command.attempt_id, "another's intent")
        must(answer.not_after == until and written is not None and written.not_after == until, "no end to it")
    if isinstance(answer, ledger.ReturnRecordedResult):
        must(step.count(f.StepRecorded) == 1, "a result that was found is not recorded")


def _right_answer(step: Step, row: Effect | None) -> type[ledger.LedgerAnswer]:
    command = step.command
    if row is None:
        return ledger.AllowExecute
    lineage = family_of(step.before).lineage or step.before.id
    is_other = isinstance(command, c.IntendEffect) and row.args_hash != command.args_hash
    if is_other and (row.lineage != lineage or row.status not in ("not_done", "abandoned")):
        return ledger.Rejected
    is_in_flight = row.status == "intended" and step.now < (row.not_after or 0) + step.limits.effect_margin
    by_status: dict[str, type[ledger.LedgerAnswer]] = {
        "not_done": ledger.AllowExecute,
        "done": ledger.ReturnRecordedResult,
        "intended": ledger.WaitOtherWorker if is_in_flight else ledger.Rejected,
    }
    return by_status.get(row.status, ledger.Rejected)


def an_effect_moves_only_by_its_facts(step: Step) -> None:
    if step.scene_after.effects is step.scene_before.effects:
        return
    for new in step.scene_after.effects:
        old = step.scene_before.effect(new.key)
        if old is None or new == old:
            must(old is not None or new.status == "intended", "an effect that began in the middle")
            continue
        must(old.status not in ("done", "abandoned"), f"an effect that was {old.status} moved again")
        if old.status == new.status:
            _check_adoption(step, old, new)
        else:
            _check_move(step, old, new)


def _check_adoption(step: Step, old: Effect, new: Effect) -> None:
    """An unknown effect belongs to the task that asked for it last; nothing else of it changes."""
    adopted = replace(old, task_id=step.before.id, version=new.version, updated_at=new.updated_at)
    is_asked = isinstance(step.command, c.IntendEffect) and step.holds
    must(old.status == "unknown" and is_asked and new == adopted, "an effect was written without being moved")


def _check_move(step: Step, old: Effect, new: Effect) -> None:
    match (old.status, new.status):
        case ("not_done", "intended"):
            must(isinstance(step.command, c.IntendEffect), "an intent without a request")
        case ("intended", "done") if isinstance(step.command, c.FinishEffect):
            must(step.holds and old.attempt_id == step.command.attempt_id, "another's effect was finished")
            must(step.count(f.StepRecorded) == 1, "an effect was finished without its step")
        case ("intended", "unknown"):
            _check_doubt(step, old)
        case ("intended" | "unknown", settled):
            must(isinstance(step.command, c.SettleEffect), f"settled by {type(step.command).__name__}")
            if isinstance(step.command, c.SettleEffect):
                must(VERDICTS[step.command.verdict] == settled, "settled against its verdict")
                _check_verdict(step, step.command, old)
        case strange:
            must(False, f"an effect went from {strange[0]} to {strange[1]}")


def _check_doubt(step: Step, old: Effect) -> None:
    is_own = old.task_id == step.before.id
    is_over = step.now >= (old.not_after or 0) + step.limits.effect_margin
    may_doubt = isinstance(step.command, c.DoubtEffect) or bool(step.count(f.TurnEnded))
    must((is_own and may_doubt) or is_over, "an effect in flight was doubted by another attempt")


def _check_verdict(step: Step, command: c.SettleEffect, old: Effect) -> None:
    is_own = command.attempt_id is not None and old.attempt_id == command.attempt_id
    is_over = step.now >= (old.not_after or 0) + step.limits.effect_margin
    is_found_done = command.verdict == "done" and command.holder_gone
    is_forced = command.force and command.attempt_id is None
    is_free = old.status == "unknown" or is_over or is_forced
    must(is_own or is_found_done or is_free, "an effect in flight was settled by another attempt")
    must(command.attempt_id is None or step.holds, "a stale attempt settled an effect")
    if command.attempt_id is None:
        may_repeat = is_over or is_forced
    else:
        is_known = (is_own and command.call_ended) or (is_over and (is_own or command.holder_gone))
        may_repeat = is_known or command.may_repeat
    must(command.verdict != "not_done" or may_repeat, "run again although its first caller may be at it")


def a_turn_that_ends_leaves_nothing_in_flight(step: Step) -> None:
    if not step.count(f.TurnEnded):
        return
    must(not inside_of(step.after).intents, "an intent outlives its turn")
    open_ones = [e.key for e in step.scene_after.effects if e.status == "intended"]
    own = [key for key in open_ones if key in inside_of(step.before).intents]
    must(all(_is_taken_over(step, key) for key in own), "an effect is still in flight after its turn")


def _is_taken_over(step: Step, key: str) -> bool:
    row = step.scene_after.effect(key)
    return row is not None and row.task_id != step.before.id


def a_persons_word_unblocks(step: Step) -> None:
    word = step.command
    if not isinstance(word, c.SettleEffect) or word.attempt_id is not None:
        return
    if step.moves and step.before.status == "blocked":
        is_for_it = inside_of(step.before).held_for in ("", word.key)
        goes_on = step.before.reason == "effect_unknown" and is_for_it
        must((step.after.status != "blocked") == goes_on, "a person's word did not help, or freed another")
