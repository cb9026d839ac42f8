//! `tenure watch`: prints the state of leases, and then each change.
//!
//! The store's hints only wake the watcher. It prints what it then observes, never the hint itself.

mod known_leases;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use futures_util::{FutureExt, StreamExt};
use serde::Serialize;
use tenure::store::Store;
use tenure::{Clock, Error, Kind, Lease, Moment, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::selector::{Selector, target};
use crate::{duration, output, shutdown, store_access, time};
use known_leases::{KnownLeases, WatchEvent};

/// The longest time between two observations: a store that is gone sends no hint.
const MAX_OBSERVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long after its expiry a lease is observed again, so that an expired lease is not polled in a tight loop.
const EXPIRY_SLACK: Duration = Duration::from_millis(50);
/// How often a store that is down is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure watch
  tenure watch billing:nightly
  tenure watch 'billing:*' --json

It ends on Ctrl-C, SIGTERM, or when nobody reads any more.
Exit codes: 0 ended; 122 store unreachable at the start; 123 an operator must act; 125 usage.")]
pub(crate) struct WatchArgs {
    /// One lease, or those that begin like this [default: all but Tenure's own, 'tenure:*']
    #[arg(value_name = "NAME | 'PREFIX*'", value_parser = target)]
    target: Option<Selector>,
}

pub(crate) fn run(args: &Args, watch: &WatchArgs) -> Result<Exit> {
    let target = watch.target.clone().unwrap_or_else(Selector::all);
    crate::runtime()?.block_on(async {
        let interrupted = shutdown::stop_signal()?;
        let follow = async {
            let store = store_access::open(args).await?;
            Watcher::new(store, target, args.json).follow().await
        };
        tokio::select! {
            ended = follow => ended,
            () = interrupted => Ok(Exit::Done),
            () = shutdown::stdout_closed() => Ok(Exit::Done),
        }
    })
}

struct Watcher {
    store: Arc<dyn Store>,
    target: Selector,
    json: bool,
    clock: Clock,
    known: KnownLeases,
    /// The errors of leases that could not be read at the last observation, so that each error is reported once.
    unreadable: BTreeSet<String>,
    /// The store does not answer, and that was reported.
    is_down: bool,
}

impl Watcher {
    fn new(store: Arc<dyn Store>, target: Selector, json: bool) -> Watcher {
        let (known, unreadable) = (KnownLeases::default(), BTreeSet::new());
        Watcher { store, target, json, clock: Clock::boot(), known, unreadable, is_down: false }
    }

    /// Watches until an error that an operator must resolve.
    async fn follow(mut self) -> Result<Exit> {
        // Subscribe before the first observation, so that no change is lost between the two.
        let mut hints = self.store.watch(&self.target.scope());
        let mut due = self.observe_first().await?;
        loop {
            let hint = async {
                if self.is_down || hints.next().await.is_none() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = hint => {}
                () = self.clock.sleep_until(due) => {}
            }
            // One observation covers all hints received until now.
            while let Some(Some(_)) = hints.next().now_or_never() {}
            due = self.observe_again().await?;
        }
    }

    /// The first observation. An unavailable store ends the command here.
    async fn observe_first(&mut self) -> Result<Moment> {
        let found = store_access::observe(&*self.store, &self.target.scope()).await?;
        if let (Selector::One(_), Some(Err(error))) = (&self.target, found.first()) {
            return Err(error.clone());
        }
        let (leases, _) = self.readable(found);
        let events = self.known.open(&leases);
        if let (Selector::One(name), []) = (&self.target, events.as_slice()) {
            self.print(&WatchEvent { name: Some(name.to_string()), ..WatchEvent::of("state") })?;
        }
        self.print_all(&events)?;
        Ok(self.next_observation(&leases))
    }

    /// Every later observation. Returns when to observe again if no hint comes before.
    async fn observe_again(&mut self) -> Result<Moment> {
        let found = match store_access::observe(&*self.store, &self.target.scope()).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::Unavailable => {
                self.report_down(&error)?;
                return Ok(self.clock.now() + RETRY_INTERVAL);
            }
            Err(error) => return Err(error),
        };
        if self.is_down {
            self.is_down = false;
            self.print(&WatchEvent::store("unreachable", "reachable", None))?;
        }
        let (leases, all_read) = self.readable(found);
        let events = self.known.update(&leases, all_read);
        self.print_all(&events)?;
        Ok(self.next_observation(&leases))
    }

    fn report_down(&mut self, error: &Error) -> Result<()> {
        if self.is_down {
            return Ok(());
        }
        self.is_down = true;
        let reason = output::printable(&error.to_string());
        self.print(&WatchEvent::store("reachable", "unreachable", Some(reason)))
    }

    /// The selected leases that can be read, and whether all could be read.
    fn readable(&mut self, found: Vec<Result<Lease>>) -> (Vec<Lease>, bool) {
        let mut unreadable = BTreeSet::new();
        let mut leases = Vec::new();
        for lease in found {
            match lease {
                Ok(lease) if self.target.shows(&lease.name) => leases.push(lease),
                Ok(_) => {}
                Err(error) => {
                    let text = output::printable(&error.to_string());
                    if !self.unreadable.contains(&text) {
                        output::print_error(error.kind().as_str(), &text, self.json);
                    }
                    unreadable.insert(text);
                }
            }
        }
        self.unreadable = unreadable;
        leases.sort_by(|a, b| a.name.cmp(&b.name));
        (leases, self.unreadable.is_empty())
    }

    /// When to observe again: when the first lease expires unless it is renewed. A store need not send a hint for an expiry.
    fn next_observation(&self, leases: &[Lease]) -> Moment {
        let held = leases.iter().filter(|lease| lease.holder.is_some());
        let next = |lease: &Lease| lease.wait.map_or(lease.left, |wait| wait.left.min(lease.left));
        let wait = held.map(next).min().unwrap_or(MAX_OBSERVE_INTERVAL);
        self.clock.now() + (wait + EXPIRY_SLACK).min(MAX_OBSERVE_INTERVAL)
    }

    fn print_all(&self, events: &[WatchEvent]) -> Result<()> {
        events.iter().try_for_each(|event| self.print(event))
    }

    fn print(&self, event: &WatchEvent) -> Result<()> {
        let at = time::now();
        if self.json {
            output::json(&WatchJson { at, news: event })
        } else {
            output::line(format!("{at}  {}", sentence(event)))
        }
    }
}

#[derive(Serialize)]
struct WatchJson<'a> {
    at: String,
    #[serde(flatten)]
    news: &'a WatchEvent,
}

impl WatchEvent {
    fn of(event: &'static str) -> WatchEvent {
        WatchEvent {
            event,
            name: None,
            from: None,
            to: None,
            token: None,
            reason: None,
            holder: None,
            starts_in_ms: None,
        }
    }

    fn store(from: &str, to: &str, reason: Option<String>) -> WatchEvent {
        WatchEvent {
            from: Some(from.to_owned()),
            to: Some(to.to_owned()),
            reason,
            ..WatchEvent::of("store")
        }
    }
}

fn sentence(event: &WatchEvent) -> String {
    let plain = |text: &Option<String>| text.as_deref().map(output::printable);
    let because = event.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let to = plain(&event.to);
    let Some(name) = &event.name else {
        return format!("store {}{because}", to.unwrap_or_default());
    };
    let token = event.token.map(|token| format!(" (token {token})")).unwrap_or_default();
    if let (Some(holder), Some(ms)) = (plain(&event.holder), event.starts_in_ms) {
        let left = duration::shown(Duration::from_millis(ms));
        return format!(
            "{name}: nobody leads; '{holder}' has the lease and starts in {left}{token}{because}"
        );
    }
    match (event.event, plain(&event.from), to) {
        ("state", _, Some(to)) => format!("{name}: '{to}' leads{token}"),
        ("state", _, None) => format!("{name}: nobody leads"),
        ("changed", _, Some(to)) => format!("{name}: '{to}' has another token{token}{because}"),
        (_, Some(from), Some(to)) => {
            format!("{name}: '{to}' leads now{token}, before it '{from}'{because}")
        }
        (_, None, Some(to)) => format!("{name}: '{to}' leads now{token}"),
        (_, from, None) => {
            format!("{name}: nobody leads now, before '{}'{because}", from.unwrap_or_default())
        }
    }
}
