//! One process of the demo: campaigns, and while it leads, counts. What it does can be asked over HTTP.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tenure::machine::EndReason;
use tenure::{Clock, Election, Error, Event, Leadership, Result, Saved};
use tokio::signal::unix::{SignalKind, signal};

use super::journal::{Journal, JournalAction};
use super::node_http::{self, NodeStatus};
use super::protocol::{NodeMessage, Plan};
use crate::exit::Exit;

/// How often the leader counts.
const BEAT: Duration = Duration::from_millis(100);

pub(crate) fn run() -> Result<Exit> {
    let plan = orders()?;
    crate::runtime()?.block_on(take_part(&plan))
}

/// Reads the orders and ties this process to its parent's life.
fn orders() -> Result<Plan> {
    let told = |what: String| Error::invalid(format!("demo-node is for 'tenure demo': {what}"));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| told(error.to_string()))?;
    let plan = serde_json::from_str(&line).map_err(|error| told(error.to_string()))?;
    // The pipe ends with the parent, however it dies. The signal does the same and also reaches a
    // process that is frozen at that moment, but not one whose parent was gone before it was asked
    // for.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let end_with_parent = || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    };
    std::thread::Builder::new().spawn(end_with_parent).map_err(failure)?;
    Ok(plan)
}

async fn take_part(plan: &Plan) -> Result<Exit> {
    let mut told_to_end = signal(SignalKind::terminate()).map_err(failure)?;
    let journal = Journal::append(&plan.journal, &plan.id).map_err(failure)?;
    let store = tenure::open(&plan.store).await?;
    let election = Election::builder(&plan.name)
        .id(&plan.id)
        .ttl(Duration::from_millis(plan.ttl_ms))
        .ends_with_process(true)
        .start(Arc::clone(&store))
        .await?;
    let election = Arc::new(election);
    let (face, http) = NodeStatus::open(plan.port, &election, &store);
    say(&NodeMessage::Started { http: http.map_err(|error| error.to_string()) });
    follow(&election);
    let campaign = async {
        while let Some(leadership) = election.leadership().await {
            lead(&leadership, &journal, &face).await?;
        }
        Ok::<(), Error>(())
    };
    let end = async {
        told_to_end.recv().await;
        // Returns when the work has stopped and the lease is given back.
        election.stop().await;
        Ok(())
    };
    tokio::try_join!(campaign, end)?;
    face.close();
    Ok(Exit::Done)
}

/// Says whenever somebody else has come to lead.
fn follow(election: &Election) {
    let id = election.candidate_id().to_string();
    let tell = move |leader: String| {
        if leader != id {
            say(&NodeMessage::Follows { leader });
        }
    };
    election.on_event(move |event| {
        if let Event::LeaderChanged { to: Some(leader), .. } = event {
            tell(leader);
        }
    });
}

/// The work of one term. Ends only between two counts, so that a clean end leaves nothing half
/// done.
async fn lead(leadership: &Leadership, journal: &Journal, face: &NodeStatus) -> Result<()> {
    let clock = Clock::boot();
    let token = leadership.token().get();
    let mut count = resumed(leadership)?;
    face.leads(count);
    if let Some(at) = journal.effect(leadership, JournalAction::Lead, count).map_err(failure)? {
        say(&NodeMessage::Leads { at: at.as_nanos(), token, from: count });
    }
    let mut next = clock.now();
    let why = loop {
        next = (next + BEAT).max(clock.now());
        tokio::select! {
            biased;
            why = leadership.lost() => break why,
            () = clock.sleep_until(next) => {}
        }
        let began = clock.now();
        if advance(leadership, journal, count + 1).await? {
            count += 1;
            face.counted(count, clock.now().since(began));
            say(&NodeMessage::Counted { count });
        }
    };
    let clean = matches!(
        why,
        EndReason::Shutdown | EndReason::Resigned | EndReason::Asked | EndReason::Drained
    );
    let deed = if clean { JournalAction::End } else { JournalAction::Lost };
    journal.end(leadership, deed, count).map_err(failure)?;
    say(&NodeMessage::Ended { token, count, why: told(&why), clean });
    Ok(())
}

/// Where the last leader stopped.
fn resumed(leadership: &Leadership) -> Result<u64> {
    let Some(checkpoint) = leadership.checkpoint() else { return Ok(0) };
    node_http::count(checkpoint)
        .ok_or_else(|| Error::corrupt("the checkpoint of the demo is not a count"))
}

/// One count: first the checkpoint, and only when the store has it, the line that shows it. So what
/// is seen is kept.
async fn advance(leadership: &Leadership, journal: &Journal, count: u64) -> Result<bool> {
    match leadership.save(count.to_string()).await {
        Ok(Saved::Kept) => {
            let written =
                journal.effect(leadership, JournalAction::Count, count).map_err(failure)?;
            Ok(written.is_some())
        }
        Ok(Saved::Lost) => Ok(false),
        // The same count comes again with the next beat.
        Err(error) => {
            tracing::warn!("count {count} is not saved yet: {error}");
            Ok(false)
        }
    }
}

fn told(why: &EndReason) -> String {
    match why {
        EndReason::Unreachable(_) => "store unreachable".to_owned(),
        EndReason::StoreError(error) => error.to_string(),
        EndReason::Paused(long) => {
            format!("this process did not run for {:.1} s", long.as_secs_f64())
        }
        EndReason::Refused(Some(other)) => format!("{other} leads now"),
        EndReason::Refused(None) => "the lease has run out".to_owned(),
        EndReason::Shutdown => "shutdown".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// One line to the parent. Without a parent there is nothing left to do here.
fn say(word: &NodeMessage) {
    let Ok(text) = serde_json::to_string(word) else { return };
    if writeln!(io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

fn failure(error: io::Error) -> Error {
    Error::denied(format!("the demo cannot go on: {error}"))
}
