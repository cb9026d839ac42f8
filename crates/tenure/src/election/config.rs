//! [`ElectionConfig`]: the settings of an election in the application's own settings file, as JSON, TOML or any other format of
//! serde.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use super::{Election, ElectionBuilder};
use crate::error::Result;
use crate::lease::{CandidateId, Name, Note};
use crate::text::parse_duration;
use crate::timing::TimingOptions;

/// The settings of an election, read with serde (feature `serde`). Only `name` has to be given.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::ElectionConfig;
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     port: u16,
///     election: ElectionConfig,
/// }
///
/// let file = r#"{"port": 8080, "election": {"name": "reports:nightly", "ttl": "10s", "renew_every": "2s500ms"}}"#;
/// let settings: Settings = serde_json::from_str(file)?;
/// let store = tenure::open("memory:").await?;
/// let election = settings.election.builder().start(store).await?;
/// assert_eq!(election.name().as_str(), "reports:nightly");
/// # assert_eq!(settings.port, 8080);
/// # election.stop().await;
/// # Ok(()) }
/// ```
///
/// | key | value | default |
/// |---|---|---|
/// | `name` | the name of the election | required |
/// | `id` | the id of this candidate | `HOSTNAME-PID-RANDOM` |
/// | `ttl` | the length of the lease | `"4s"` |
/// | `renew_every` | how often the leader renews | TTL/3 |
/// | `retry_period` | the longest time between two polls of a waiting candidate | the TTL |
/// | `grace` | how long renewals may keep failing | the deadline decides |
/// | `margin` | the margin between the end of the lease and the leader's deadline | TTL/10 |
/// | `stop_within` | the time that the work has to stop before the deadline | TTL/5 |
/// | `drift` | how far clocks may drift apart, in millionths | 1000 |
/// | `priority` | which waiting candidate leads next | 0 |
/// | `note` | a short text for readers of the lease | none |
///
/// Durations are text with a unit: `"500ms"`, `"4s"`, `"1h30m"`. An unknown key is an error that lists the known ones; so a
/// setting with a typing mistake is never ignored. Contradictions between the durations are found by
/// [`start`](ElectionBuilder::start), because the store has limits too. Whether the work
/// [ends with the process](ElectionBuilder::ends_with_process) is a fact about the program and no setting: declare it on the
/// builder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ElectionConfig {
    /// The name of the election.
    #[serde(deserialize_with = "name")]
    pub name: Name,
    /// The id of this candidate; `None` to generate one.
    #[serde(default, deserialize_with = "id")]
    pub id: Option<CandidateId>,
    /// The length of the lease.
    #[serde(default, deserialize_with = "durations::ttl")]
    pub ttl: Option<Duration>,
    /// How often the leader renews.
    #[serde(default, deserialize_with = "durations::renew_every")]
    pub renew_every: Option<Duration>,
    /// The longest time between two polls of a waiting candidate.
    #[serde(default, deserialize_with = "durations::retry_period")]
    pub retry_period: Option<Duration>,
    /// How long renewals may keep failing before the leader stops.
    #[serde(default, deserialize_with = "durations::grace")]
    pub grace: Option<Duration>,
    /// The margin between the end of the lease and the leader's deadline.
    #[serde(default, deserialize_with = "durations::margin")]
    pub margin: Option<Duration>,
    /// The time that the work has to stop before the deadline.
    #[serde(default, deserialize_with = "durations::stop_within")]
    pub stop_within: Option<Duration>,
    /// How far clocks may drift apart, in millionths.
    #[serde(default)]
    pub drift: Option<u32>,
    /// The priority of this candidate.
    #[serde(default)]
    pub priority: i32,
    /// A short text for readers of the lease.
    #[serde(default, deserialize_with = "note")]
    pub note: Note,
}

impl ElectionConfig {
    /// Creates a config with the defaults for the election of `name`.
    pub fn new(name: Name) -> ElectionConfig {
        ElectionConfig {
            name,
            id: None,
            ttl: None,
            renew_every: None,
            retry_period: None,
            grace: None,
            margin: None,
            stop_within: None,
            drift: None,
            priority: 0,
            note: Note::default(),
        }
    }

    /// Builds a candidate with these settings. Set on the builder what belongs to the program, such as a health check.
    pub fn builder(&self) -> ElectionBuilder {
        let ElectionConfig {
            name,
            id,
            ttl,
            renew_every,
            retry_period,
            grace,
            margin,
            stop_within,
            drift,
            priority,
            note,
        } = self;
        let timing = TimingOptions {
            ttl: *ttl,
            renew_every: *renew_every,
            retry: *retry_period,
            grace: *grace,
            margin: *margin,
            stop_within: *stop_within,
            drift_ppm: *drift,
        };
        let builder = Election::builder(name.as_str()).options(timing).priority(*priority);
        let builder = builder.note(note.as_str());
        match id {
            Some(id) => builder.id(id.as_str()),
            None => builder,
        }
    }
}

/// Reads a text and checks it.
fn checked<'de, D: Deserializer<'de>, T>(
    key: &str,
    deserializer: D,
    check: impl FnOnce(&str) -> Result<T>,
) -> std::result::Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    check(&text).map_err(|error| D::Error::custom(format_args!("{key}: {error}")))
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Name, D::Error> {
    checked("name", deserializer, Name::new)
}

fn id<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<CandidateId>, D::Error> {
    checked("id", deserializer, CandidateId::new).map(Some)
}

fn note<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Note, D::Error> {
    checked("note", deserializer, Note::new)
}

/// One function for each duration, so that an error names the key.
mod durations {
    use super::{Deserializer, Duration, duration};

    macro_rules! durations {
        ($($key:ident),*) => {
            $(pub(super) fn $key<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<Duration>, D::Error> {
                duration(stringify!($key), deserializer).map(Some)
            })*
        };
    }

    durations!(ttl, renew_every, retry_period, grace, margin, stop_within);
}

fn duration<'de, D: Deserializer<'de>>(
    key: &'static str,
    deserializer: D,
) -> std::result::Result<Duration, D::Error> {
    deserializer.deserialize_any(DurationText { key })
}

/// Reads a duration from text. A bare number gets the error that [`parse_duration`] has for it.
struct DurationText {
    key: &'static str,
}

impl Visitor<'_> for DurationText {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a duration such as \"500ms\", \"4s\" or \"1h30m\"", self.key)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Duration, E> {
        parse_duration(text).map_err(|error| E::custom(format_args!("{}: {error}", self.key)))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> std::result::Result<Duration, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> std::result::Result<Duration, E> {
        self.visit_str(&number.to_string())
    }
}
