//! One process of the demo: campaigns, counts while it leads, and serves its status over HTTP.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tenure::machine::EndReason;
use tenure::{Clock, Election, Error, Event, Leadership, Result, Saved};
use tokio::signal::unix::{SignalKind, signal};

use super::journal::{Journal, JournalAction};
use super::node_http::{self, NodeStatus};
use super::protocol::{NodeConfig, NodeMessage};
use crate::exit::Exit;

/// How often the leader counts.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run() -> Result<Exit> {
    let config = read_config()?;
    crate::runtime()?.block_on(run_node(&config))
}

/// Reads the config from stdin, and makes sure that this process ends with its parent.
fn read_config() -> Result<NodeConfig> {
    let usage = |what: String| Error::invalid(format!("demo-node is for 'tenure demo': {what}"));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| usage(error.to_string()))?;
    let config = serde_json::from_str(&line).map_err(|error| usage(error.to_string()))?;
    // The pipe closes when the parent dies, however it dies. The death signal does the same and also kills a process that is
    // frozen at that moment, but it does nothing if the parent died before it was requested. So both are needed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let end_with_parent = || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    };
    std::thread::Builder::new().spawn(end_with_parent).map_err(failure)?;
    Ok(config)
}

async fn run_node(config: &NodeConfig) -> Result<Exit> {
    let mut sigterm = signal(SignalKind::terminate()).map_err(failure)?;
    let journal = Journal::append(&config.journal, &config.id).map_err(failure)?;
    let store = tenure::open(&config.store).await?;
    let election = Election::builder(&config.name)
        .id(&config.id)
        .ttl(Duration::from_millis(config.ttl_ms))
        .ends_with_process(true)
        .start(Arc::clone(&store))
        .await?;
    let election = Arc::new(election);
    let (status, http) = NodeStatus::open(config.port, &election, &store);
    send(&NodeMessage::Started { http: http.map_err(|error| error.to_string()) });
    report_leader_changes(&election);
    let campaign = async {
        while let Some(leadership) = election.leadership().await {
            lead(&leadership, &journal, &status).await?;
        }
        Ok::<(), Error>(())
    };
    let end = async {
        sigterm.recv().await;
        // Returns when the work has stopped and the lease is released.
        election.stop().await;
        Ok(())
    };
    tokio::try_join!(campaign, end)?;
    status.close();
    Ok(Exit::Done)
}

/// Reports to the parent whenever another candidate becomes the leader.
fn report_leader_changes(election: &Election) {
    let id = election.candidate_id().to_string();
    let report = move |leader: String| {
        if leader != id {
            send(&NodeMessage::Follows { leader });
        }
    };
    election.on_event(move |event| {
        if let Event::LeaderChanged { to: Some(leader), .. } = event {
            report(leader);
        }
    });
}

/// The work of one term. It ends only between two counts, so that a clean end leaves no count half done.
async fn lead(leadership: &Leadership, journal: &Journal, status: &NodeStatus) -> Result<()> {
    let clock = Clock::boot();
    let token = leadership.token().get();
    let mut count = resumed(leadership)?;
    status.leads(count);
    if let Some(at) = journal.effect(leadership, JournalAction::Lead, count).map_err(failure)? {
        send(&NodeMessage::Leads { at: at.as_nanos(), token, from: count });
    }
    let mut next = clock.now();
    let reason = loop {
        next = (next + COUNT_INTERVAL).max(clock.now());
        tokio::select! {
            biased;
            reason = leadership.lost() => break reason,
            () = clock.sleep_until(next) => {}
        }
        let started = clock.now();
        if advance(leadership, journal, count + 1).await? {
            count += 1;
            status.counted(count, clock.now().since(started));
            send(&NodeMessage::Counted { count });
        }
    };
    let clean = matches!(
        reason,
        EndReason::Shutdown | EndReason::Resigned | EndReason::Asked | EndReason::Drained
    );
    let action = if clean { JournalAction::End } else { JournalAction::Lost };
    journal.end(leadership, action, count).map_err(failure)?;
    send(&NodeMessage::Ended { token, count, why: described(&reason), clean });
    Ok(())
}

/// The count at which the last leader stopped.
fn resumed(leadership: &Leadership) -> Result<u64> {
    let Some(checkpoint) = leadership.checkpoint() else { return Ok(0) };
    node_http::count(checkpoint)
        .ok_or_else(|| Error::corrupt("the checkpoint of the demo is not a count"))
}

/// Counts once: saves the checkpoint first, and writes the journal line only when the store has it. So the store has every
/// count in the journal.
async fn advance(leadership: &Leadership, journal: &Journal, count: u64) -> Result<bool> {
    match leadership.save(count.to_string()).await {
        Ok(Saved::Kept) => {
            let written =
                journal.effect(leadership, JournalAction::Count, count).map_err(failure)?;
            Ok(written.is_some())
        }
        Ok(Saved::Lost) => Ok(false),
        // The same count is tried again at the next interval.
        Err(error) => {
            tracing::warn!("count {count} is not saved yet: {error}");
            Ok(false)
        }
    }
}

fn described(reason: &EndReason) -> String {
    match reason {
        EndReason::Unreachable(_) => "store unreachable".to_owned(),
        EndReason::StoreError(error) => error.to_string(),
        EndReason::Paused(long) => {
            format!("this process did not run for {:.1} s", long.as_secs_f64())
        }
        EndReason::Refused(Some(other)) => format!("{other} leads now"),
        EndReason::Refused(None) => "the lease has run out".to_owned(),
        EndReason::Drained => "drained".to_owned(),
        other => other.to_string(),
    }
}

/// Sends one message to the parent. Exits if the parent is gone.
fn send(message: &NodeMessage) {
    let Ok(text) = serde_json::to_string(message) else { return };
    if writeln!(io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

fn failure(error: io::Error) -> Error {
    Error::denied(format!("the demo cannot go on: {error}"))
}
