//! `tenure fleet plan`: who would have what, and what would move. A calculation: no store is asked, but for shards that lie in
//! one on Redis.

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::Shard;
use tenure::placement::{HeldShards, PlacementMember, plan};
use tenure::{CandidateId, Error, Name, Result};

use super::options::fleet;
use super::source::SourceArgs;
use super::table::{self, MemberShards};
use crate::args::Args;
use crate::exit::Exit;
use crate::store_url::ChosenStore;
use crate::{output, selector, shutdown};

/// So many moves are named at most.
const MOVES: usize = 20;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet plan poll --members web-1,web-2 --shards-file tenants
  tenure fleet plan poll --members web-1,web-2 --shards-file tenants --join web-3
  tenure --store redis://127.0.0.1 fleet plan poll --members a,b --leave a    the set poll:shards

It shows the shares of members that begin with nothing, and with --join or --leave what moves
from there. A running fleet may have dealt its shards out otherwise: 'tenure fleet status'
shows that.
Exit codes: 0 done; 122 the shards cannot be read; 123 an operator must act; 125 usage.")]
pub(crate) struct PlanArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The members: a,b,c
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true, value_parser = selector::id)]
    members: Vec<CandidateId>,

    /// One that joins them
    #[arg(long, value_name = "ID", conflicts_with = "leave", value_parser = selector::id)]
    join: Option<CandidateId>,

    /// One of them that leaves
    #[arg(long, value_name = "ID", value_parser = selector::id)]
    leave: Option<CandidateId>,

    #[command(flatten, next_help_heading = "Shards")]
    source: SourceArgs,
}

pub(crate) fn run(args: &Args, plan: &PlanArgs) -> Result<Exit> {
    let company = PlanInput::of(plan)?;
    let source = plan.source.source(&plan.name, &ChosenStore::of(args)?.url)?;
    let read = crate::runtime()?.block_on(async {
        let interrupted = shutdown::caught()?;
        // A command among the sources ends with us.
        tokio::select! {
            read = source.read() => read.map(Some),
            () = interrupted => Ok(None),
        }
    })?;
    let Some(mut read) = read else { return Ok(Exit::Done) };
    if let Some(sentence) = refused(&read.refused) {
        output::tell("invalid", &sentence, args.json);
    }
    // What is paused has no owner, and counts for nobody's share.
    let paused = std::mem::take(&mut read.paused);
    let (paused, shards): (Vec<Shard>, Vec<Shard>) =
        read.shards.into_iter().partition(|shard| paused.binary_search(shard).is_ok());
    let outcome = PlanJson::of(&company, &shards);
    if args.json {
        output::json(&PlanView::new(&plan.name, &company, &outcome, &shards, &paused))?;
    } else {
        output::line(text(&plan.name, &source.shown(), &company, &outcome, &shards, &paused))?;
    }
    Ok(Exit::Done)
}

/// What the source has that is no shard, in a sentence.
fn refused(refused: &tenure::fleet::source::RefusedNames) -> Option<String> {
    let first = refused.sentences.first()?;
    let first = output::printable(first);
    Some(match refused.count() - 1 {
        0 => format!("left out: {first}"),
        more => format!("left out: {first}; and {} more", table::number(more)),
    })
}

/// Who takes part, before and after.
struct PlanInput<'a> {
    ids: Vec<&'a CandidateId>,
    /// Its place among them.
    joins: Option<usize>,
    leaves: Option<usize>,
}

impl<'a> PlanInput<'a> {
    fn of(plan: &'a PlanArgs) -> Result<PlanInput<'a>> {
        let mut ids: Vec<&CandidateId> = plan.members.iter().collect();
        ids.extend(&plan.join);
        ids.sort();
        if let Some(twice) = ids.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]) {
            return Err(Error::invalid(match &plan.join {
                Some(join) if join == twice => {
                    format!("--join '{join}': it is among the --members already")
                }
                _ => format!("--members: '{twice}' is there twice, and no two have the same id"),
            }));
        }
        let place = |id: &Option<CandidateId>| ids.iter().position(|it| Some(*it) == id.as_ref());
        let (joins, leaves) = (place(&plan.join), place(&plan.leave));
        match &plan.leave {
            Some(leave) if leaves.is_none() => Err(Error::invalid(format!(
                "--leave '{leave}': it is not among the --members, so it cannot leave"
            ))),
            Some(leave) if ids.len() == 1 => Err(Error::invalid(format!(
                "--leave '{leave}': it is the only member, so nobody would be left to own anything"
            ))),
            _ => Ok(PlanInput { ids, joins, leaves }),
        }
    }

    /// All of them, but that one takes nothing.
    fn without(&self, absent: Option<usize>) -> Vec<PlacementMember<'a>> {
        let member = |(at, id): (usize, &&'a CandidateId)| PlacementMember {
            id: id.as_str(),
            drained: Some(at) == absent,
        };
        self.ids.iter().enumerate().map(member).collect()
    }

    fn changes(&self) -> bool {
        self.joins.is_some() || self.leaves.is_some()
    }

    /// How many there are in the end.
    fn count(&self) -> usize {
        self.ids.len() - usize::from(self.leaves.is_some())
    }
}

/// Who has which shard, by their places.
struct PlanJson {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
    shares_before: Vec<usize>,
    shares: Vec<usize>,
    moves: usize,
    /// The greatest share less the smallest, in the end.
    spread: usize,
    /// What is promised about the moves: ⌈S/N⌉ + N.
    bound: usize,
}

impl PlanJson {
    fn of(company: &PlanInput<'_>, shards: &[Shard]) -> PlanJson {
        let held = |owners: &[Option<usize>]| -> Vec<HeldShards<'_>> {
            let owner = |at: usize| owners.get(at).copied().flatten();
            shards
                .iter()
                .enumerate()
                .map(|(at, it)| HeldShards::new(it.as_str(), owner(at)))
                .collect()
        };
        let before = plan(&company.without(company.joins), &held(&[]));
        let after = match company.changes() {
            true => plan(&company.without(company.leaves), &held(&before)),
            false => before.clone(),
        };
        let shares = |owners: &[Option<usize>]| {
            let mut shares = vec![0; company.ids.len()];
            owners.iter().flatten().for_each(|owner| shares[*owner] += 1);
            shares
        };
        let (shares_before, shares) = (shares(&before), shares(&after));
        let there = || {
            let here = |(at, _): &(usize, &usize)| Some(*at) != company.leaves;
            shares.iter().enumerate().filter(here).map(|(_, share)| *share)
        };
        let spread = there().max().unwrap_or(0) - there().min().unwrap_or(0);
        let count = company.count();
        PlanJson {
            moves: before.iter().zip(&after).filter(|(before, after)| before != after).count(),
            bound: shards.len().div_ceil(count) + count,
            before,
            after,
            shares_before,
            shares,
            spread,
        }
    }
}

/// A plan in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanView<'a> {
    name: &'a str,
    members: Vec<PlanMember<'a>>,
    shards: Vec<PlanShard<'a>>,
    /// Those the source itself calls paused; nobody would have them.
    paused: Vec<&'a str>,
    spread: usize,
    moves: Option<usize>,
    bound: Option<usize>,
}

#[derive(Serialize)]
struct PlanMember<'a> {
    id: &'a str,
    /// How many it would own.
    shards: usize,
    /// How many it would own without the change.
    before: Option<usize>,
}

#[derive(Serialize)]
struct PlanShard<'a> {
    shard: &'a str,
    owner: Option<&'a str>,
    before: Option<&'a str>,
}

impl<'a> PlanView<'a> {
    fn new(
        name: &'a Name,
        company: &PlanInput<'a>,
        outcome: &PlanJson,
        shards: &'a [Shard],
        paused: &'a [Shard],
    ) -> PlanView<'a> {
        let changes = company.changes();
        let id = |at: usize| company.ids[at].as_str();
        let members = (0..company.ids.len()).map(|at| PlanMember {
            id: id(at),
            shards: outcome.shares[at],
            before: changes.then_some(outcome.shares_before[at]),
        });
        let rows = shards.iter().enumerate().map(|(at, shard)| PlanShard {
            shard: shard.as_str(),
            owner: outcome.after[at].map(id),
            before: outcome.before[at].map(id).filter(|_| changes),
        });
        PlanView {
            name: name.as_str(),
            members: members.collect(),
            shards: rows.collect(),
            paused: paused.iter().map(Shard::as_str).collect(),
            spread: outcome.spread,
            moves: changes.then_some(outcome.moves),
            bound: changes.then_some(outcome.bound),
        }
    }
}

/// The same for people, who get no more of it than they can read.
fn text(
    name: &Name,
    source: &str,
    company: &PlanInput<'_>,
    outcome: &PlanJson,
    shards: &[Shard],
    paused: &[Shard],
) -> String {
    let left_out = match paused.len() {
        0 => String::new(),
        count => format!(", and {} more that are paused", table::number(count)),
    };
    let mut parts = vec![format!(
        "{} of '{name}' from {}{left_out}.",
        table::shards(shards.len()),
        output::printable(source)
    )];
    if company.changes() {
        parts.push(table::table(&changes(company, outcome), [false, true, true, false]));
    } else {
        parts.push(table::table(&shares(company, outcome), [false, true]));
    }
    parts.push(figures(company, outcome, shards.len()));
    parts.push(if company.changes() {
        moves(company, outcome, shards)
    } else {
        let group = |(at, id): (usize, &&CandidateId)| MemberShards {
            title: id.to_string(),
            shards: theirs(outcome, shards, at),
        };
        table::groups(&company.ids.iter().enumerate().map(group).collect::<Vec<_>>())
    });
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn theirs<'a>(outcome: &PlanJson, shards: &'a [Shard], member: usize) -> Vec<&'a Shard> {
    let owned = shards.iter().zip(&outcome.after).filter(|(_, owner)| **owner == Some(member));
    owned.map(|(shard, _)| shard).collect()
}

fn shares(company: &PlanInput<'_>, outcome: &PlanJson) -> Vec<[String; 2]> {
    let head = ["MEMBER", "SHARDS"].map(str::to_owned);
    let line = |(id, share): (&&CandidateId, &usize)| [id.to_string(), table::number(*share)];
    let lines = company.ids.iter().zip(&outcome.shares).map(line);
    std::iter::once(head).chain(lines).collect()
}

fn changes(company: &PlanInput<'_>, outcome: &PlanJson) -> Vec<[String; 4]> {
    let head = ["MEMBER", "BEFORE", "AFTER", ""].map(str::to_owned);
    let line = |(at, id): (usize, &&CandidateId)| {
        let (joins, leaves) = (company.joins == Some(at), company.leaves == Some(at));
        let share = |share: usize, absent| match absent {
            true => "-".to_owned(),
            false => table::number(share),
        };
        [
            id.to_string(),
            share(outcome.shares_before[at], joins),
            share(outcome.shares[at], leaves),
            if joins {
                "joins"
            } else if leaves {
                "leaves"
            } else {
                ""
            }
            .to_owned(),
        ]
    };
    let lines = company.ids.iter().enumerate().map(line);
    std::iter::once(head).chain(lines).collect()
}

fn figures(company: &PlanInput<'_>, outcome: &PlanJson, shards: usize) -> String {
    let (spread, count) = (outcome.spread, table::number(company.count()));
    if !company.changes() {
        return format!("max - min: {spread}");
    }
    let (moves, bound) = (table::number(outcome.moves), table::number(outcome.bound));
    let all = table::number(shards);
    format!("moves: {moves}, at most {bound} (⌈{all}/{count}⌉ + {count})\nmax - min: {spread}")
}

fn moves(company: &PlanInput<'_>, outcome: &PlanJson, shards: &[Shard]) -> String {
    let id = |at: Option<usize>| at.map_or("nobody", |at| company.ids[at].as_str());
    let owners = outcome.before.iter().zip(&outcome.after);
    let moved = shards.iter().zip(owners).filter(|(_, (before, after))| before != after);
    let line = |(shard, (before, after)): (&Shard, (&Option<usize>, &Option<usize>))| {
        [table::name(shard), id(*before).to_owned(), "→".to_owned(), id(*after).to_owned()]
    };
    let lines: Vec<[String; 4]> = moved.take(MOVES).map(line).collect();
    let rest = table::more(outcome.moves - lines.len());
    let table = table::table(&lines, [false; 4]);
    [table].into_iter().chain(rest).collect::<Vec<_>>().join("\n")
}
