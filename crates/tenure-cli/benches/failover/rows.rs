//! One row of the table: one fault on one store, repeated.

use std::fmt;
use std::time::Duration;

use tenure_rig::figures::Figures;
use tenure_rig::system::election_trial::ElectionTrial;
use tenure_rig::system::fault::Fault;
use tenure_rig::system::fault_cycle::cycle;
use tenure_rig::system::time::millis;
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

pub(crate) const TTL: Duration = Duration::from_secs(5);
/// What the leader subtracts from its lease: the margin of a tenth and the drift of a thousandth.
const SAFETY_GAP: Duration = Duration::from_millis(505);
/// The number of concurrent names, if each repeat takes as long as a lease.
const CONCURRENT_NAMES: usize = 5;

pub(crate) struct Row {
    fault: Fault,
    place: StoreKind,
    gaps: Figures,
    /// From the expiry of the lease in the store to the first effect of the next term.
    after_expiry: Figures,
    /// From the last effect to the leader's own deadline.
    before_deadline: Figures,
    /// From the thaw until the work was gone.
    thaws: Figures,
    overlaps: usize,
    stale_accepted: usize,
    stale_refused: u64,
    failures: Vec<String>,
}

impl Row {
    fn new(place: StoreKind, fault: Fault) -> Row {
        Row {
            fault,
            place,
            gaps: Figures::default(),
            after_expiry: Figures::default(),
            before_deadline: Figures::default(),
            thaws: Figures::default(),
            overlaps: 0,
            stale_accepted: 0,
            stale_refused: 0,
            failures: Vec::new(),
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.overlaps == 0 && self.stale_accepted == 0 && self.failures.is_empty()
    }

    fn merge(&mut self, other: Row) {
        self.gaps.merge(other.gaps);
        self.after_expiry.merge(other.after_expiry);
        self.before_deadline.merge(other.before_deadline);
        self.thaws.merge(other.thaws);
        self.overlaps += other.overlaps;
        self.stale_accepted += other.stale_accepted;
        self.stale_refused += other.stale_refused;
        self.failures.extend(other.failures);
    }

    /// Whether each repeat takes as long as a lease.
    fn is_slow(&self) -> bool {
        match self.fault {
            Fault::Kill | Fault::Term | Fault::Guard => false,
            Fault::KillTree | Fault::KillPair => self.place.is_server(),
            Fault::Freeze | Fault::FreezeTree | Fault::Cut => true,
        }
    }

    /// The target of the issue.
    fn wanted(&self) -> &'static str {
        match (self.fault, self.place.is_server()) {
            (Fault::Kill, false) => "median ≤ 15 ms, p99 ≤ 60 ms",
            (Fault::Kill, true) => "median ≤ 25 ms, p99 ≤ 100 ms",
            (Fault::KillTree, false) => "≤ 20 ms",
            (Fault::KillTree, true) if self.place == StoreKind::Etcd => {
                "≤ remaining lease + 600 ms"
            }
            (Fault::KillTree, true) => "≤ remaining lease + 30 ms",
            (Fault::Term, false) => "median ≤ 10 ms",
            (Fault::Term, true) => "median ≤ 15 ms",
            (Fault::Freeze, _) => "dead before the deadline, next ≤ lease + 30 ms",
            (Fault::FreezeTree, _) => "dead ≤ 100 ms after the thaw, 0 stale writes",
            (Fault::Cut, _) => "dead before the deadline",
            (Fault::KillPair | Fault::Guard, _) => "",
        }
    }
}

pub(crate) fn heading(place: StoreKind) -> String {
    let place = if place.is_server() { place.name() } else { "file (tmpfs)" };
    let profile = if cfg!(debug_assertions) { "DEBUG BUILD" } else { "release build" };
    format!(
        "\n{place}, TTL {TTL:?}, three contenders, {profile}; milliseconds from the fault to the next term's first effect\n\
         {:<12} {:>7} {:>9} {:>9} {:>9} {:>8}   wanted",
        "fault", "repeats", "median", "p99", "max", "overlaps"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gaps, fault) = (&self.gaps, self.fault.name());
        let (median, p99, most) = (gaps.median(), gaps.percent(99), gaps.most());
        write!(f, "{fault:<12} {:>7} {median:>9.1} {p99:>9.1} {most:>9.1}", gaps.count())?;
        write!(f, " {:>8}   {}", self.overlaps, self.wanted())?;
        let mut note = |what: &str, figures: &Figures| match figures.count() {
            0 => Ok(()),
            _ => {
                let (least, median) = (figures.least(), figures.median());
                let most = figures.most();
                write!(f, "\n    {what}: least {least:.1}, median {median:.1}, most {most:.1}")
            }
        };
        note("first effect after the lease would have run out", &self.after_expiry)?;
        note("last effect before the deadline", &self.before_deadline)?;
        note("from the thaw to the death of the work", &self.thaws)?;
        if self.thaws.count() > 0 {
            let (accepted, refused) = (self.stale_accepted, self.stale_refused);
            write!(f, "\n    stale writes at the fence: {accepted} accepted, {refused} refused")?;
        }
        for failure in &self.failures {
            write!(f, "\n    FAILED: {failure}")?;
        }
        Ok(())
    }
}

pub(crate) fn measure(place: StoreKind, fault: Fault, repeats: usize) -> Row {
    let mut row = Row::new(place, fault);
    let names = if row.is_slow() { CONCURRENT_NAMES.min(repeats) } else { 1 };
    std::thread::scope(|scope| {
        // The first names take the remainder.
        let share = |name| repeats / names + usize::from(name < repeats % names);
        let run = |name| scope.spawn(move || one_name(place, fault, share(name)));
        let runs: Vec<_> = (0..names).map(run).collect();
        for run in runs {
            match run.join() {
                Ok(part) => row.merge(part),
                Err(why) => {
                    let text = why.downcast_ref::<String>().map(String::as_str);
                    row.failures.push(text.unwrap_or("it panicked").to_owned());
                }
            }
        }
    });
    row
}

fn one_name(place: StoreKind, fault: Fault, repeats: usize) -> Row {
    let mut row = Row::new(place, fault);
    let cabled = match (fault, place) {
        (Fault::Cut, StoreKind::Etcd) => StoreKind::EtcdCabled,
        (Fault::Cut, _) => StoreKind::Cabled,
        _ => place,
    };
    let mut stage = ElectionTrial::new(cabled, TTL, Mode::Plain);
    for _ in 0..repeats {
        let outcome = cycle(&mut stage, fault);
        row.gaps.add(outcome.gap().as_secs_f64() * 1_000.0);
        if let Some(expiry) = outcome.expiry {
            row.after_expiry.add(millis(expiry, outcome.first));
            if matches!(fault, Fault::Freeze | Fault::Cut) {
                row.before_deadline.add(millis(outcome.last, expiry.before(SAFETY_GAP)));
            }
        }
        if let Some(thawed) = outcome.thawed {
            row.thaws.add(thawed.as_secs_f64() * 1_000.0);
        }
    }
    let (verdict, books) = stage.close();
    row.overlaps = verdict.overlaps.len() + verdict.shared.len() + verdict.beside.len();
    row.stale_accepted = books.stale_accepted();
    row.stale_refused = books.refused;
    if !row.is_clean() {
        row.failures.push(format!("history and logs are kept in {}", stage.keep().display()));
    }
    row
}
