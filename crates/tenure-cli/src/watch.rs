//! `tenure watch`: the state, and then each change as it comes.
//!
//! The store's hints only wake us; what is told is what was then read.

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

/// The longest we go without looking: a store that is gone gives no hint.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A lease that has just run out, or a store that is down, is not asked about more often than this.
const BREATH: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(1);

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
        let interrupted = shutdown::caught()?;
        let follow = async {
            let store = store_access::open(args).await?;
            Watcher::new(store, target, args.json).follow().await
        };
        tokio::select! {
            ended = follow => ended,
            () = interrupted => Ok(Exit::Done),
            () = shutdown::nobody_reads() => Ok(Exit::Done),
        }
    })
}

struct Watcher {
    store: Arc<dyn Store>,
    target: Selector,
    json: bool,
    clock: Clock,
    book: KnownLeases,
    /// What could not be read at the last look, so that it is told once.
    spoilt: BTreeSet<String>,
    /// The store does not answer, and that was told.
    is_down: bool,
}

impl Watcher {
    fn new(store: Arc<dyn Store>, target: Selector, json: bool) -> Watcher {
        let (book, spoilt) = (KnownLeases::default(), BTreeSet::new());
        Watcher { store, target, json, clock: Clock::boot(), book, spoilt, is_down: false }
    }

    /// Goes on until something is wrong that an operator must see to.
    async fn follow(mut self) -> Result<Exit> {
        // Listening comes before looking, so that nothing falls in between.
        let mut hints = self.store.watch(&self.target.scope());
        let mut due = self.begin().await?;
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
            // One look answers all that has been said until now.
            while let Some(Some(_)) = hints.next().now_or_never() {}
            due = self.look().await?;
        }
    }

    /// The first look: a store that is down now ends it.
    async fn begin(&mut self) -> Result<Moment> {
        let found = store_access::observe(&*self.store, &self.target.scope()).await?;
        if let (Selector::One(_), Some(Err(error))) = (&self.target, found.first()) {
            return Err(error.clone());
        }
        let (leases, _) = self.readable(found);
        let news = self.book.open(&leases);
        if let (Selector::One(name), []) = (&self.target, news.as_slice()) {
            self.say(&WatchEvent { name: Some(name.to_string()), ..WatchEvent::of("state") })?;
        }
        self.say_all(&news)?;
        Ok(self.next_look(&leases))
    }

    /// Every other look. Gives when to look again if nothing is heard until then.
    async fn look(&mut self) -> Result<Moment> {
        let found = match store_access::observe(&*self.store, &self.target.scope()).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::Unavailable => {
                self.down(&error)?;
                return Ok(self.clock.now() + RETRY);
            }
            Err(error) => return Err(error),
        };
        if self.is_down {
            self.is_down = false;
            self.say(&WatchEvent::store("unreachable", "reachable", None))?;
        }
        let (leases, all_read) = self.readable(found);
        let news = self.book.update(&leases, all_read);
        self.say_all(&news)?;
        Ok(self.next_look(&leases))
    }

    fn down(&mut self, error: &Error) -> Result<()> {
        if self.is_down {
            return Ok(());
        }
        self.is_down = true;
        let why = output::printable(&error.to_string());
        self.say(&WatchEvent::store("reachable", "unreachable", Some(why)))
    }

    /// What can be read and is asked for, and whether that is all there is.
    fn readable(&mut self, found: Vec<Result<Lease>>) -> (Vec<Lease>, bool) {
        let mut spoilt = BTreeSet::new();
        let mut leases = Vec::new();
        for lease in found {
            match lease {
                Ok(lease) if self.target.shows(&lease.name) => leases.push(lease),
                Ok(_) => {}
                Err(error) => {
                    let text = output::printable(&error.to_string());
                    if !self.spoilt.contains(&text) {
                        output::tell(error.kind().as_str(), &text, self.json);
                    }
                    spoilt.insert(text);
                }
            }
        }
        self.spoilt = spoilt;
        leases.sort_by(|a, b| a.name.cmp(&b.name));
        (leases, self.spoilt.is_empty())
    }

    /// When the first of them runs out, unless it is renewed: no store has to tell us of that.
    fn next_look(&self, leases: &[Lease]) -> Moment {
        let held = leases.iter().filter(|lease| lease.holder.is_some());
        let next = |lease: &Lease| lease.wait.map_or(lease.left, |wait| wait.left.min(lease.left));
        let wait = held.map(next).min().unwrap_or(LOOK_EVERY);
        self.clock.now() + (wait + BREATH).min(LOOK_EVERY)
    }

    fn say_all(&self, news: &[WatchEvent]) -> Result<()> {
        news.iter().try_for_each(|news| self.say(news))
    }

    fn say(&self, news: &WatchEvent) -> Result<()> {
        let at = time::now();
        if self.json {
            output::json(&WatchJson { at, news })
        } else {
            output::line(format!("{at}  {}", sentence(news)))
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

fn sentence(news: &WatchEvent) -> String {
    let plain = |text: &Option<String>| text.as_deref().map(output::printable);
    let because = news.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let to = plain(&news.to);
    let Some(name) = &news.name else {
        return format!("store {}{because}", to.unwrap_or_default());
    };
    let token = news.token.map(|token| format!(" (token {token})")).unwrap_or_default();
    if let (Some(holder), Some(ms)) = (plain(&news.holder), news.starts_in_ms) {
        let left = duration::shown(Duration::from_millis(ms));
        return format!(
            "{name}: nobody leads; '{holder}' has the lease and starts in {left}{token}{because}"
        );
    }
    match (news.event, plain(&news.from), to) {
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
