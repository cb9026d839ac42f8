//! `tenure fleet status`: the members of a fleet and the owner of each shard, observed once.

use std::collections::BTreeMap;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::{Shard, Snapshot};
use tenure::{CandidateId, Name, Result};

use super::client::FleetClient;
use super::options::fleet;
use super::table::{self, ShardGroup};
use crate::args::Args;
use crate::exit::Exit;
use crate::output;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet status poll
  tenure fleet status poll --json | jq '.shards[] | select(.owner == null and .removed != true)'

A shard is shown as long as the store remembers its last owner; 'removed' if no member lists it any
more. On Redis those in the set NAME:shards are shown too, owned or not.

Exit codes: 0 somebody is there; 1 the fleet has no member; 122 store unreachable;
123 an operator must act; 125 usage.")]
pub(crate) struct FleetStatusArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,
}

pub(crate) fn run(args: &Args, status: &FleetStatusArgs) -> Result<Exit> {
    crate::runtime()?.block_on(async {
        let snapshot = FleetClient::open(args, &status.name).await?.snapshot().await?;
        for error in &snapshot.unreadable {
            output::print_error(
                error.kind().as_str(),
                &output::printable(&error.to_string()),
                args.json,
            );
        }
        if args.json {
            output::json(&FleetJson::new(&status.name, &snapshot))?;
        } else {
            output::line(text(&status.name, &snapshot))?;
        }
        Ok(if snapshot.members.is_empty() { Exit::No } else { Exit::Done })
    })
}

/// A fleet in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FleetJson<'a> {
    name: &'a str,
    members: Vec<MemberJson<'a>>,
    shards: Vec<ShardJson<'a>>,
    /// While members list different shards: how many each member lists; null for a member that has announced no list.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lists: BTreeMap<&'a str, Option<usize>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberJson<'a> {
    id: &'a str,
    /// The number of shards that the member owns.
    shards: usize,
    drained: bool,
    url: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShardJson<'a> {
    shard: &'a str,
    owner: Option<&'a str>,
    /// The token of the current term, or of the last term if the shard has no owner.
    token: Option<u64>,
    paused: bool,
    /// No member lists the shard any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
}

impl<'a> FleetJson<'a> {
    pub(crate) fn new(name: &'a Name, snapshot: &'a Snapshot) -> FleetJson<'a> {
        let shares = snapshot.shares();
        let members = snapshot.members.iter().map(|member| MemberJson {
            id: member.id.as_str(),
            shards: shares.get(member.id.as_str()).copied().unwrap_or(0),
            drained: member.drained,
            url: Some(member.note.as_str()).filter(|url| !url.is_empty()),
        });
        let removed = snapshot.removed();
        let shards = snapshot.shards.iter().map(|(shard, owned)| ShardJson {
            shard: shard.as_str(),
            owner: owned.owner.as_deref(),
            token: owned.token.map(|token| token.get()),
            paused: owned.paused,
            removed: removed.contains(shard),
        });
        FleetJson {
            name: name.as_str(),
            members: members.collect(),
            shards: shards.collect(),
            lists: snapshot.differing_lists(),
        }
    }
}

/// The status as text for people, shortened to what fits on a screen.
fn text(name: &Name, snapshot: &Snapshot) -> String {
    let (groups, counts) = groups(snapshot);
    let lists = lists(snapshot).map(|line| format!("\n{line}")).unwrap_or_default();
    let mut parts = vec![format!("{}\n{counts}{lists}", member_summary(name, snapshot))];
    let members = members(snapshot);
    // More than the header row.
    if members.len() > 1 {
        parts.push(table::table(&members, [false, true, false]));
    }
    parts.push(table::groups(&groups));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn member_summary(name: &Name, snapshot: &Snapshot) -> String {
    let is_present = |id: &&CandidateId| snapshot.members.iter().any(|member| member.id == **id);
    let absent = snapshot.overrides.drained.iter().filter(|id| !is_present(id));
    let absent: Vec<&str> = absent.map(CandidateId::as_str).collect();
    let mut text = match snapshot.members.len() {
        0 => format!("Nobody is there: the fleet '{name}' has no member."),
        1 => format!("The fleet '{name}' has 1 member."),
        count => format!("The fleet '{name}' has {} members.", table::number(count)),
    };
    if !absent.is_empty() {
        text += &format!("\nDrained, and not there: {}.", table::some(absent.into_iter()));
    }
    text
}

/// A sentence for members that list different shards, with the number of shards that each lists.
fn lists(snapshot: &Snapshot) -> Option<String> {
    let lists = snapshot.differing_lists().into_iter().map(|(member, shards)| match shards {
        Some(shards) => format!("{member} {}", table::number(shards)),
        None => format!("{member} unknown"),
    });
    let lists: Vec<String> = lists.collect();
    let shown = || table::some(lists.iter().map(String::as_str));
    (!lists.is_empty()).then(|| format!("The members list different shards: {}.", shown()))
}

/// A row for each member, and for each owner of shards that is not a member.
fn members(snapshot: &Snapshot) -> Vec<[String; 3]> {
    let mut shares = snapshot.shares();
    let mut lines = vec![["MEMBER", "SHARDS", ""].map(str::to_owned)];
    for member in &snapshot.members {
        let share = shares.remove(member.id.as_str()).unwrap_or(0);
        let drained = if member.drained { "drained  " } else { "" };
        let remark = format!("{drained}{}", output::printable(&member.note));
        lines.push([member.id.to_string(), table::number(share), remark]);
    }
    for (owner, share) in shares {
        let remark = "no member: leaving, or gone until its leases run out".to_owned();
        lines.push([output::printable(owner), table::number(share), remark]);
    }
    lines
}

/// The shards grouped by state and owner, and a sentence with the size of each state.
fn groups(snapshot: &Snapshot) -> (Vec<ShardGroup<'_>>, String) {
    let on_no_list = snapshot.removed();
    let (mut paused, mut held, mut unowned, mut removed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut owners: BTreeMap<&str, Vec<&Shard>> = BTreeMap::new();
    for (shard, owned) in &snapshot.shards {
        match (&owned.owner, owned.paused) {
            (None, true) => paused.push(shard),
            (Some(_), true) => held.push(shard),
            (None, false) if on_no_list.contains(shard) => removed.push(shard),
            (None, false) => unowned.push(shard),
            (Some(owner), false) => owners.entry(owner).or_default().push(shard),
        }
    }
    let owned: usize = owners.values().map(Vec::len).sum();
    let mut counts = vec![format!("{} owned", table::number(owned))];
    let unusual = [
        ("paused", paused.len()),
        ("paused but not let go yet", held.len()),
        ("without an owner", unowned.len()),
    ];
    let unusual = unusual.into_iter().filter(|(_, count)| *count > 0);
    counts.extend(unusual.map(|(what, count)| format!("{} {what}", table::number(count))));
    let all = table::shards(snapshot.shards.len() - removed.len());
    let gone = match removed.len() {
        0 => String::new(),
        count => format!(" {} removed.", table::number(count)),
    };
    let group = |title: &str, shards| ShardGroup { title: title.to_owned(), shards };
    let mut groups = vec![
        group("Paused", paused),
        group("Paused, but not let go yet", held),
        group("Without an owner", unowned),
    ];
    let owners = owners.into_iter();
    groups.extend(owners.map(|(owner, shards)| group(&output::printable(owner), shards)));
    groups.push(group("Removed", removed));
    (groups, format!("{all}: {}.{gone}", counts.join(", ")))
}
