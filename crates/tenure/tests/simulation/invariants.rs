//! The invariants, one per file. PROOF.md lists their names.

mod at_most_one_held;
mod clean_handover;
mod crash_failover;
mod deadline_before_expiry;
mod fence_strict;
mod free_lease_is_taken;
mod frugal_when_calm;
mod garbage_never_grants;
mod healthy_holder_stays;
mod in_time;
mod no_lost_checkpoint;
mod no_phantom_renewal;
mod no_resurrection;
mod priority_leads_next;
mod release_only_own;
mod stop_before_release;

use super::fact::Fact;
use tenure_rig::simulation::clock::Time;

pub(crate) trait Invariant: Send {
    fn name(&self) -> &'static str;
    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String>;
}

pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<at_most_one_held::AtMostOneHeld>::default(),
        Box::<fence_strict::FenceStrict>::default(),
        Box::<deadline_before_expiry::DeadlineBeforeExpiry>::default(),
        Box::<no_resurrection::NoResurrection>::default(),
        Box::<release_only_own::ReleaseOnlyOwn>::default(),
        Box::<no_phantom_renewal::NoPhantomRenewal>::default(),
        Box::<stop_before_release::StopBeforeRelease>::default(),
        Box::<garbage_never_grants::GarbageNeverGrants>::default(),
        Box::<no_lost_checkpoint::NoLostCheckpoint>::default(),
        Box::<crash_failover::CrashFailover>::default(),
        Box::<clean_handover::CleanHandover>::default(),
        Box::<healthy_holder_stays::HealthyHolderStays>::default(),
        Box::<free_lease_is_taken::FreeLeaseIsTaken>::default(),
        Box::<frugal_when_calm::FrugalWhenCalm>::default(),
        Box::<priority_leads_next::PriorityLeadsNext>::default(),
    ]
}
