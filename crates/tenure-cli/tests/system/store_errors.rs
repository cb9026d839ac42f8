//! The store responds with an error: a password that is refused, a key of the wrong type, a damaged record. The leader stops
//! its work, logs the reason, and campaigns again; no candidate exits, and when the store is repaired one leads again.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::faults::{SOON, TTL, deadline};
use crate::trial;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::time::{now, pause_until, poll_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

/// How long each error lasts, in turn: from one that no renewal encounters to one that outlasts every lease.
const LASTING: [Duration; 4] =
    [TTL.checked_div(10).unwrap(), TTL.checked_div(2).unwrap(), TTL, TTL.saturating_mul(2)];
const COMPANION: &str = "tenure:{system:trial}";

#[derive(Clone, Copy, Debug)]
enum StoreError {
    /// The server requires a password that the candidates do not have.
    Password,
    /// A list has replaced the companion.
    WrongType,
    /// A field of the companion is garbage.
    Companion,
    /// The first byte of the record's file is garbage.
    File,
}

pub(crate) fn trials() -> Vec<Trial> {
    use StoreError::*;
    let rows = [
        ("wrong_password::redis", StoreKind::Redis, Password, 20),
        ("wrong_type::redis", StoreKind::Redis, WrongType, 8),
        ("corrupt_companion::redis", StoreKind::Redis, Companion, 8),
        ("corrupt_record::file", StoreKind::File, File, 8),
    ];
    rows.map(|(name, place, error, turns)| {
        let name = format!("store_error::{name}");
        trial(name, place, move || no_candidate_exits(place, error, turns))
    })
    .into()
}

fn no_candidate_exits(place: StoreKind, error: StoreError, turns: usize) {
    let mut stage = ElectionTrial::new(place, TTL, Mode::Plain);
    for lasting in LASTING.into_iter().cycle().take(turns) {
        let term = stage.settled();
        let begun = now();
        break_store(&stage, error);
        let broken = now();
        pause_until(begun + lasting);
        if lasting > TTL {
            stage.gone(&term.work);
            let late = stage.last_of(term.token).at.since(deadline(broken, TTL));
            if late > Duration::ZERO {
                stage.fail(&format!("the leader worked {late:?} past its deadline"));
            }
            // The log may be delayed by a moment.
            let logged = poll_until(TIMEOUT, || {
                stage.log_of(term.who).contains(reason(error)).then_some(())
            });
            logged.unwrap_or_else(|| stage.fail("the leader does not say why it stopped"));
        }
        repair_store(&stage, error);
        let repaired = now();
        let gap = stage.next_since(repaired).at.since(repaired);
        if gap > TTL * 2 + SOON {
            stage.fail(&format!("no work for {gap:?} after the store was repaired"));
        }
        for who in 0..stage.contenders.len() {
            if let Some(status) = stage.contenders[who].ended() {
                stage.fail(&format!("candidate {who} exited: {status}"));
            }
        }
    }
    stage.finish();
}

/// What the leader's log says about the error. After a refused password the guard may stop the command first.
fn reason(error: StoreError) -> &'static str {
    match error {
        StoreError::Password => "refuses us: NOAUTH",
        StoreError::WrongType | StoreError::Companion => {
            "Lost leadership: what lies under 'system:trial'"
        }
        StoreError::File => "system:trial.lease is not a lease of Tenure",
    }
}

fn break_store(stage: &ElectionTrial, error: StoreError) {
    match error {
        StoreError::Password => stage.place.send(&[
            "CONFIG SET requirepass secret",
            // Connections that are logged in would stay logged in.
            "CLIENT KILL TYPE normal",
            "CLIENT KILL TYPE pubsub",
        ]),
        StoreError::WrongType => stage.place.send(&[
            "MULTI",
            &format!("RENAME {COMPANION} set-aside"),
            &format!("LPUSH {COMPANION} x"),
            "EXEC",
        ]),
        StoreError::Companion => stage.place.send(&[
            "MULTI",
            &format!("COPY {COMPANION} set-aside"),
            &format!("HSET {COMPANION} token garbage"),
            "EXEC",
        ]),
        StoreError::File => set_first_byte(stage, b'#'),
    }
}

fn repair_store(stage: &ElectionTrial, error: StoreError) {
    match error {
        StoreError::Password => {
            stage.place.send(&["AUTH secret", "CONFIG SET requirepass \"\""]);
        }
        StoreError::WrongType | StoreError::Companion => {
            stage.place.send(&[&format!("RENAME set-aside {COMPANION}")]);
        }
        StoreError::File => set_first_byte(stage, b'{'),
    }
}

fn set_first_byte(stage: &ElectionTrial, byte: u8) {
    let [store, _] = stage.place.paths().expect("a directory");
    let record = store.join("leases/system:trial.lease");
    OpenOptions::new().write(true).open(record).unwrap().write_all_at(&[byte], 0).unwrap();
}
