//! `Display` of the enums whose values are labels: one stable word each, the same as `as_str`, without times, ids or messages.
//! The chapter [`docs::observability`](crate::docs::observability) lists the words.

use std::fmt;

use crate::error::Kind;
use crate::fleet;
use crate::lease::{Ended, PastTermOutcome};
use crate::machine::{EndReason, Phase};
use crate::metrics::RenewalFailure;
use crate::store::{Grade, Verdict, Visibility};

/// `CandidateState` and `WaitReason` have a `Display` for people: the reason of the former, a clause about the latter.
macro_rules! display_label {
    ($($labelled:ty),* $(,)?) => {
        $(impl fmt::Display for $labelled {
            /// Writes the word of `as_str`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        })*
    };
}

display_label!(
    EndReason,
    Ended,
    Grade,
    Kind,
    PastTermOutcome,
    Phase,
    RenewalFailure,
    Verdict,
    Visibility,
    fleet::Reason,
);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use crate::error::Error;
    use crate::lease::Token;

    /// Users write these words into alerts and dashboards.
    #[test]
    fn the_words_stay_the_same() {
        let at = Moment::from_nanos(1);
        let token = Token::new(7).unwrap();
        let end_reasons = [
            EndReason::Unreachable(at),
            EndReason::StoreError(Error::denied("wrong password")),
            EndReason::Paused(Duration::from_secs(5)),
            EndReason::Refused(Some("b".to_owned())),
            EndReason::Resigned,
            EndReason::Dropped,
            EndReason::Asked,
            EndReason::Unhealthy,
            EndReason::Drained,
            EndReason::Shutdown,
        ];
        let words = "unreachable store-error process-paused refused resigned dropped asked unhealthy drain shutdown";
        assert_eq!(end_reasons.map(|reason| reason.to_string()).join(" "), words);
        let phases =
            [Phase::Waiting, Phase::Starting, Phase::Leading, Phase::Resigning, Phase::Stopped];
        let words = "waiting starting leading stopping stopped";
        assert_eq!(phases.map(|phase| phase.to_string()).join(" "), words);
        let kinds = [Kind::Unavailable, Kind::Denied, Kind::Invalid, Kind::Corrupt];
        let words = "unavailable denied invalid corrupt";
        assert_eq!(kinds.map(|kind| kind.to_string()).join(" "), words);
        let ended =
            [Ended::Nothing, Ended::Released(token), Ended::Expired(token), Ended::Died(token)];
        let words = "nothing released expired died";
        assert_eq!(ended.map(|ended| ended.to_string()).join(" "), words);
        assert_eq!(
            [Grade::A, Grade::B, Grade::C].map(|grade| grade.to_string()).join(" "),
            "A B C"
        );
        let verdicts = [Verdict::Good, Verdict::Weak, Verdict::Bad];
        assert_eq!(verdicts.map(|verdict| verdict.to_string()).join(" "), "good weak bad");
        let reasons = [
            fleet::Reason::Rebalance,
            fleet::Reason::Shutdown,
            fleet::Reason::Expired,
            fleet::Reason::Paused,
            fleet::Reason::Drain,
            fleet::Reason::Unhealthy,
            fleet::Reason::Removed,
            fleet::Reason::Released,
            fleet::Reason::Dropped,
            fleet::Reason::Panicked,
        ];
        let words =
            "rebalance shutdown expired paused drain unhealthy removed released dropped panicked";
        assert_eq!(reasons.map(|reason| reason.to_string()).join(" "), words);
    }

    #[test]
    fn a_label_is_padded_like_text() {
        assert_eq!(format!("{:4}|", Verdict::Bad), "bad |");
    }
}
