//! Checks every property on every store, as named trials: `redis-7::renew_refused_after_expiry`.
//!
//! A trial that cannot run here is shown as ignored, with the reason, and never as passed. If the server of a store is missing,
//! its trials fail instead if `TENURE_REQUIRE_STORES` is `all` or names that store.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use tenure::store::conformance::{
    self, Capability, Fixture, PROPERTIES, Property, PropertyOutcome,
};

// One module per store.
mod bucket;
mod documents;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod wrapper;

/// Every store to test: one line each.
fn subjects() -> Vec<Arc<dyn Subject>> {
    let mut subjects: Vec<Arc<dyn Subject>> = Vec::new();
    subjects.extend(memory::subjects());
    subjects.extend(documents::subjects());
    subjects.extend(bucket::subjects());
    subjects.extend(wrapper::subjects());
    #[cfg(feature = "file")]
    subjects.extend(file::subjects());
    #[cfg(feature = "redis")]
    subjects.extend(redis::subjects());
    #[cfg(feature = "kubernetes")]
    subjects.extend(kubernetes::subjects());
    subjects
}

/// The timeout of a trial, against hanging.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(300);

/// A store under test.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// The prefix of its trials' names; for a server, its kind: `redis-7`.
    fn name(&self) -> &'static str;

    /// Whether its fixtures have this capability. Trials that need another one are shown as ignored.
    fn has_capability(&self, capability: Capability) -> bool;

    /// What is missing on this machine, and how to get it: see [`tenure_rig::servers::install_hint`].
    fn missing(&self) -> Option<String> {
        None
    }

    /// Whether it is tested only if its server is installed, and `all` does not require it.
    fn is_extra(&self) -> bool {
        false
    }

    /// Why a property is not tested on this store although its fixture could.
    fn skip_reason(&self, _property: &Property) -> Option<&'static str> {
        None
    }

    /// A fixture for one trial, which lives in the trial's own runtime. `alone`: on a store that no other trial uses.
    ///
    /// What the trials share, such as a server, is started by the first of them and kept in the subject.
    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String>;
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most of the time is spent waiting for leases to expire.
    arguments.test_threads.get_or_insert(4);
    let subjects = subjects();
    let mut trials: Vec<Trial> = subjects.iter().flat_map(trials).collect();
    trials.extend(tenure_rig::servers::trials());
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Dropped before the process ends, because subjects stop their servers.
    drop(subjects);
    conclusion.exit_code()
}

fn trials(subject: &Arc<dyn Subject>) -> impl Iterator<Item = Trial> {
    let missing = subject.missing();
    let required = is_required(&**subject);
    PROPERTIES.iter().map(move |property| {
        let cannot = property.needs.iter().find(|&&need| !subject.has_capability(need));
        let name = format!("{}::{}", subject.name(), property.name);
        let runner = Arc::clone(subject);
        let trial = Trial::test(name, move || run_trial(&*runner, property));
        if let Some(why) = subject.skip_reason(property) {
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

/// Whether it is an error if this store cannot be tested here.
fn is_required(subject: &dyn Subject) -> bool {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    required.split([',', ' ']).any(|word| match word {
        "all" => !subject.is_extra(),
        word => word == subject.name(),
    })
}

fn run_trial(subject: &dyn Subject, property: &'static Property) -> Result<(), Failed> {
    if let Some(missing) = subject.missing() {
        return Err(missing.into());
    }
    // Each trial has its own runtime: tasks that it leaves behind end with the runtime.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let fixture = subject.fixture(property.alone()).await?;
        let trial = conformance::run(property, &*fixture);
        match tokio::time::timeout(TRIAL_TIMEOUT, trial).await {
            Ok(PropertyOutcome::Passed) => Ok(()),
            Ok(PropertyOutcome::NotApplicable(capability)) => Err(format!(
                "'{}' says that it can {capability}, its fixture says that it cannot",
                subject.name()
            )
            .into()),
            Err(_) => Err(format!("not done after {TRIAL_TIMEOUT:?}").into()),
        }
    })
}
