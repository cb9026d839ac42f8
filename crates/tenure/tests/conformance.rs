//! Every store held to every property, as named trials: `redis-7::renew_refused_after_expiry`.
//!
//! What cannot be tried here is shown as ignored, with the reason, and never as passed. A store
//! whose server is missing fails instead if `TENURE_REQUIRE_STORES` is `all` or names it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use tenure::store::conformance::{
    self, Capability, Fixture, PROPERTIES, Property, PropertyOutcome,
};

// One line a store.
#[cfg(feature = "file")]
#[path = "conformance/file.rs"]
mod file;
#[path = "conformance/memory.rs"]
mod memory;
#[cfg(feature = "redis")]
#[path = "conformance/redis.rs"]
mod redis;
#[path = "conformance/servers.rs"]
#[allow(dead_code, reason = "who uses it depends on the features")]
mod servers;

/// Every store there is to be tried: one line each.
fn subjects() -> Vec<Arc<dyn Subject>> {
    let mut subjects: Vec<Arc<dyn Subject>> = Vec::new();
    subjects.extend(memory::subjects());
    #[cfg(feature = "file")]
    subjects.extend(file::subjects());
    #[cfg(feature = "redis")]
    subjects.extend(redis::subjects());
    subjects
}

/// No trial takes this long unless it hangs.
const TOO_LONG: Duration = Duration::from_secs(300);

/// A store that is held to the table.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// The first half of its trials' names; of a server, its kind: `redis-7`.
    fn name(&self) -> &'static str;

    /// What its fixtures can do. Trials that need more are shown as ignored.
    fn can(&self, ability: Capability) -> bool;

    /// What is missing on this machine, and how to get it: see [`servers::how_to_get`].
    fn missing(&self) -> Option<String> {
        None
    }

    /// It is tried where its server is, and required by nobody.
    fn is_extra(&self) -> bool {
        false
    }

    /// Why a property is not tried on this store although its fixture could.
    fn leaves_out(&self, _property: &Property) -> Option<&'static str> {
        None
    }

    /// A fixture for one trial, which lives in the trial's own runtime. `alone`: on a store nobody
    /// else uses.
    ///
    /// What is shared by the trials, such as a server, is started by the first of them and kept in
    /// the subject.
    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String>;
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most of the time is spent waiting for leases to run out.
    arguments.test_threads.get_or_insert(4);
    let subjects = subjects();
    let mut trials: Vec<Trial> = subjects.iter().flat_map(trials).collect();
    trials.extend(servers::trials());
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Before the end of the process, because they stop their servers.
    drop(subjects);
    conclusion.exit_code()
}

fn trials(subject: &Arc<dyn Subject>) -> impl Iterator<Item = Trial> {
    let missing = subject.missing();
    let required = is_required(&**subject);
    PROPERTIES.iter().map(move |property| {
        let cannot = property.needs.iter().find(|&&need| !subject.can(need));
        let name = format!("{}::{}", subject.name(), property.name);
        let runner = Arc::clone(subject);
        let trial = Trial::test(name, move || attempt(&*runner, property));
        if let Some(why) = subject.leaves_out(property) {
            return trial.with_kind(why).with_ignored_flag(true);
        }
        match (cannot, &missing) {
            (Some(cannot), _) => {
                let why = format!("cannot be done to this store: {cannot}");
                trial.with_kind(why).with_ignored_flag(true)
            }
            (None, Some(missing)) if !required => trial.with_kind(missing).with_ignored_flag(true),
            (None, _) => trial,
        }
    })
}

/// Whether a store that cannot be tried here is a failure.
fn is_required(subject: &dyn Subject) -> bool {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    required.split([',', ' ']).any(|word| match word {
        "all" => !subject.is_extra(),
        word => word == subject.name(),
    })
}

fn attempt(subject: &dyn Subject, property: &'static Property) -> Result<(), Failed> {
    if let Some(missing) = subject.missing() {
        return Err(missing.into());
    }
    // A runtime of its own: whatever a trial leaves behind in it ends with it.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let fixture = subject.fixture(property.alone()).await?;
        let trial = conformance::run(property, &*fixture);
        match tokio::time::timeout(TOO_LONG, trial).await {
            Ok(PropertyOutcome::Passed) => Ok(()),
            Ok(PropertyOutcome::NotApplicable(ability)) => Err(format!(
                "'{}' says that it can {ability}, its fixture says that it cannot",
                subject.name()
            )
            .into()),
            Err(_) => Err(format!("not done after {TOO_LONG:?}").into()),
        }
    })
}
