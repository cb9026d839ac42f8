//! F55: a leader is frozen when its slot is saved and its effect has not started yet.
//!
//! A proxy holds back the store's reply to the save. The leader is stopped there, the reply is delivered to its socket,
//! another candidate leads and runs its own slots, and the first leader resumes and reads the reply. It must not start the
//! run: the next leader has reported the slot as interrupted.
//!
//! `TENURE_TURNS=50` repeats each trial 50 times.

use std::time::Duration;

use libtest_mimic::Trial;

use crate::trial;
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::resume::resume_first_thread_first;
use tenure_rig::system::schedule_trial::{Scheduled, Work, pause_until_before_slot};
use tenure_rig::system::slots::{self, ScheduleObservation};
use tenure_rig::system::time::{now, pause, poll_until};
use tenure_rig::system::trial_store::StoreKind;

const TTL: Duration = Duration::from_secs(1);
const TURNS: usize = 5;
/// Longer than the save of a slot takes, shorter than the timeout of a request.
const SAVED_WITHIN: Duration = Duration::from_millis(200);
/// A leader that resumes starts its run at once if it starts it at all.
const AFTER_RESUMING: Duration = Duration::from_millis(200);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial(
        "judge::sees_slots_that_start_twice".to_owned(),
        StoreKind::File,
        slots::controls,
    )];
    for (name, work, more) in [
        ("every", Work::Every(1_000), &[][..]),
        ("every_without_a_guard", Work::Every(1_000), &["--no-guard"]),
        ("cron", Work::Cron, &[]),
        ("get", Work::Get(1_000), &[]),
    ] {
        let trial_name = format!("slots::frozen_before_the_effect::{name}::redis");
        let run = move || frozen_before_the_effect(name, work, more);
        trials.push(trial(trial_name, StoreKind::Cabled, run));
    }
    trials
}

fn turns() -> usize {
    std::env::var("TENURE_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(TURNS)
}

fn frozen_before_the_effect(name: &str, work: Work, more: &[&str]) {
    let turns = turns();
    let mut stage = Scheduled::new(StoreKind::Cabled, TTL, work, more);
    let mut stale = Vec::new();
    for turn in 1..=turns {
        let (who, frozen) = freeze_after_save(&mut stage, work);
        let (slot, at) = (frozen.slot.expect("a slot was saved"), now());
        stage.until("another candidate finishes a run", |saved| {
            let ended = !saved.running && saved.slot > Some(slot);
            (saved.token > frozen.token && ended).then_some(())
        });
        let lost = |stage: &Scheduled| stage.log_of(who).matches("Lost leadership").count();
        let before = lost(&stage);
        resume_first_thread_first(stage.candidates[who].pid());
        if poll_until(TIMEOUT, || (lost(&stage) > before).then_some(())).is_none() {
            stage.fail("the leader that resumed does not notice its loss");
        }
        pause(AFTER_RESUMING);
        let effects = stage.effects().into_iter();
        stale.extend(effects.filter(|line| line.token == frozen.token && line.at > at));
        let slot = local_time(slot * work.period_ms());
        let message = format!("{slot} on {} was interrupted", frozen.by);
        let mut others = (0..stage.candidates.len()).filter(|other| *other != who);
        if !others.any(|other| stage.log_of(other).contains(&message)) {
            stage.fail(&format!("turn {turn}: no log has the line: {message}"));
        }
    }
    let (verdict, checked) = stage.close();
    let summary = format!("{turns} turns, {} stale effects; {verdict}; {checked}", stale.len());
    println!("F55 {name}: {summary}");
    if !stale.is_empty() || !verdict.is_clean() || !checked.is_clean() {
        stage.fail(&summary);
    }
}

/// The local time of day of a slot, as messages name it.
fn local_time(unix_ms: u64) -> String {
    let format = match unix_ms {
        ms if !ms.is_multiple_of(1_000) => "%H:%M:%S.%3f",
        ms if !ms.is_multiple_of(60_000) => "%H:%M:%S",
        _ => "%H:%M",
    };
    let at = jiff::Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap()).unwrap();
    at.to_zoned(jiff::tz::TimeZone::system()).strftime(format).to_string()
}

/// Stops the leader after the store has saved a slot and before the leader has read the reply. Returns the candidate, and what
/// the store shows.
fn freeze_after_save(stage: &mut Scheduled, work: Work) -> (usize, ScheduleObservation) {
    let frozen = poll_until(8 * TIMEOUT, || {
        let (who, _) = stage.at_work();
        pause_until_before_slot(work.period_ms(), 40);
        let before = stage.observer.observe()?;
        stage.place.cable(who).hold_answers();
        let saved = poll_until(SAVED_WITHIN, || {
            let saved = stage.observer.observe()?;
            (saved.running && saved.token == before.token && saved.slot > before.slot)
                .then_some(saved)
        });
        if saved.is_some() {
            stage.freeze(who);
        }
        stage.place.cable(who).mend();
        Some((who, saved?))
    });
    frozen.unwrap_or_else(|| stage.fail("no slot is saved"))
}
