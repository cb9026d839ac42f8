//! `tenure fleet plan`: which member would own which shard, and which shards would move.
//!
//! The plan is calculated: no store is read, except for shards whose source is a Redis set.

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::Shard;
use tenure::placement::{HeldShard, PlacementMember, plan};
use tenure::{CandidateId, Error, Name, Result};

use super::options::fleet;
use super::source::SourceArgs;
use super::table::{self, ShardGroup};
use crate::args::Args;
use crate::exit::Exit;
use crate::store_url::ChosenStore;
use crate::{output, selector, shutdown};

/// The greatest number of moves that the text lists.
const MAX_MOVES_LISTED: usize = 20;

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
    let input = PlanInput::of(plan)?;
    let source = plan.source.source(&plan.name, &ChosenStore::of(args)?.url)?;
    let read = crate::runtime()?.block_on(async {
        let interrupted = shutdown::stop_signal()?;
        // An interrupt drops the read, which also ends a source that is a command.
        tokio::select! {
            read = source.read() => read.map(Some),
            () = interrupted => Ok(None),
        }
    })?;
    let Some(read) = read else { return Ok(Exit::Done) };
    if let Some(sentence) = refused(read.refused()) {
        output::print_error("invalid", &sentence, args.json);
    }
    // A paused shard has no owner and counts for no member's share.
    let (paused, shards): (Vec<Shard>, Vec<Shard>) =
        read.shards().iter().cloned().partition(|shard| read.is_paused(shard.as_str()));
    let result = CalculatedPlan::of(&input, &shards);
    if args.json {
        output::json(&PlanJson::new(&plan.name, &input, &result, &shards, &paused))?;
    } else {
        output::line(text(&plan.name, &source.shown(), &input, &result, &shards, &paused))?;
    }
    Ok(Exit::Done)
}

/// A sentence about the entries of the source that are not valid shards.
fn refused(refused: &tenure::fleet::source::RefusedNames) -> Option<String> {
    let first = refused.sentences.first()?;
    let first = output::printable(first);
    Some(match refused.count() - 1 {
        0 => format!("left out: {first}"),
        more => format!("left out: {first}; and {} more", table::number(more)),
    })
}

/// The members before and after the change.
struct PlanInput<'a> {
    ids: Vec<&'a CandidateId>,
    /// The index in `ids` of the member that joins.
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
        let index_of =
            |id: &Option<CandidateId>| ids.iter().position(|it| Some(*it) == id.as_ref());
        let (joins, leaves) = (index_of(&plan.join), index_of(&plan.leave));
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

    /// All members, with the absent one marked as drained, so that it owns nothing.
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

    /// The number of members after the change.
    fn count(&self) -> usize {
        self.ids.len() - usize::from(self.leaves.is_some())
    }
}

/// The calculated plan. Owners are indices into [`PlanInput::ids`].
struct CalculatedPlan {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
    shares_before: Vec<usize>,
    shares: Vec<usize>,
    moves: usize,
    /// The greatest share minus the smallest, after the change.
    spread: usize,
    /// The promised upper bound of the moves: ⌈S/N⌉ + N.
    bound: usize,
}

impl CalculatedPlan {
    fn of(input: &PlanInput<'_>, shards: &[Shard]) -> CalculatedPlan {
        let held = |owners: &[Option<usize>]| -> Vec<HeldShard<'_>> {
            let owner = |at: usize| owners.get(at).copied().flatten();
            shards
                .iter()
                .enumerate()
                .map(|(at, it)| HeldShard::new(it.as_str(), owner(at)))
                .collect()
        };
        let before = plan(&input.without(input.joins), &held(&[]));
        let after = match input.changes() {
            true => plan(&input.without(input.leaves), &held(&before)),
            false => before.clone(),
        };
        let shares = |owners: &[Option<usize>]| {
            let mut shares = vec![0; input.ids.len()];
            owners.iter().flatten().for_each(|owner| shares[*owner] += 1);
            shares
        };
        let (shares_before, shares) = (shares(&before), shares(&after));
        let shares_after = || {
            let remains = |(at, _): &(usize, &usize)| Some(*at) != input.leaves;
            shares.iter().enumerate().filter(remains).map(|(_, share)| *share)
        };
        let spread = shares_after().max().unwrap_or(0) - shares_after().min().unwrap_or(0);
        let count = input.count();
        CalculatedPlan {
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

/// A plan as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanJson<'a> {
    name: &'a str,
    members: Vec<PlanMember<'a>>,
    shards: Vec<PlanShard<'a>>,
    /// The shards that the source itself marks as paused; they would have no owner.
    paused: Vec<&'a str>,
    spread: usize,
    moves: Option<usize>,
    bound: Option<usize>,
}

#[derive(Serialize)]
struct PlanMember<'a> {
    id: &'a str,
    /// The number of shards it would own.
    shards: usize,
    /// The number of shards it would own without the change.
    before: Option<usize>,
}

#[derive(Serialize)]
struct PlanShard<'a> {
    shard: &'a str,
    owner: Option<&'a str>,
    before: Option<&'a str>,
}

impl<'a> PlanJson<'a> {
    fn new(
        name: &'a Name,
        input: &PlanInput<'a>,
        result: &CalculatedPlan,
        shards: &'a [Shard],
        paused: &'a [Shard],
    ) -> PlanJson<'a> {
        let changes = input.changes();
        let id = |at: usize| input.ids[at].as_str();
        let members = (0..input.ids.len()).map(|at| PlanMember {
            id: id(at),
            shards: result.shares[at],
            before: changes.then_some(result.shares_before[at]),
        });
        let rows = shards.iter().enumerate().map(|(at, shard)| PlanShard {
            shard: shard.as_str(),
            owner: result.after[at].map(id),
            before: result.before[at].map(id).filter(|_| changes),
        });
        PlanJson {
            name: name.as_str(),
            members: members.collect(),
            shards: rows.collect(),
            paused: paused.iter().map(Shard::as_str).collect(),
            spread: result.spread,
            moves: changes.then_some(result.moves),
            bound: changes.then_some(result.bound),
        }
    }
}

/// The plan as text for people, shortened to what fits on a screen.
fn text(
    name: &Name,
    source: &str,
    input: &PlanInput<'_>,
    result: &CalculatedPlan,
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
    if input.changes() {
        parts.push(table::table(&changes(input, result), [false, true, true, false]));
    } else {
        parts.push(table::table(&shares(input, result), [false, true]));
    }
    parts.push(figures(input, result, shards.len()));
    parts.push(if input.changes() {
        moves(input, result, shards)
    } else {
        let group = |(at, id): (usize, &&CandidateId)| ShardGroup {
            title: id.to_string(),
            shards: shards_of(result, shards, at),
        };
        table::groups(&input.ids.iter().enumerate().map(group).collect::<Vec<_>>())
    });
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn shards_of<'a>(result: &CalculatedPlan, shards: &'a [Shard], member: usize) -> Vec<&'a Shard> {
    let owned = shards.iter().zip(&result.after).filter(|(_, owner)| **owner == Some(member));
    owned.map(|(shard, _)| shard).collect()
}

fn shares(input: &PlanInput<'_>, result: &CalculatedPlan) -> Vec<[String; 2]> {
    let head = ["MEMBER", "SHARDS"].map(str::to_owned);
    let line = |(id, share): (&&CandidateId, &usize)| [id.to_string(), table::number(*share)];
    let lines = input.ids.iter().zip(&result.shares).map(line);
    std::iter::once(head).chain(lines).collect()
}

fn changes(input: &PlanInput<'_>, result: &CalculatedPlan) -> Vec<[String; 4]> {
    let head = ["MEMBER", "BEFORE", "AFTER", ""].map(str::to_owned);
    let line = |(at, id): (usize, &&CandidateId)| {
        let (joins, leaves) = (input.joins == Some(at), input.leaves == Some(at));
        let share = |share: usize, absent| match absent {
            true => "-".to_owned(),
            false => table::number(share),
        };
        [
            id.to_string(),
            share(result.shares_before[at], joins),
            share(result.shares[at], leaves),
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
    let lines = input.ids.iter().enumerate().map(line);
    std::iter::once(head).chain(lines).collect()
}

fn figures(input: &PlanInput<'_>, result: &CalculatedPlan, shards: usize) -> String {
    let (spread, count) = (result.spread, table::number(input.count()));
    if !input.changes() {
        return format!("max - min: {spread}");
    }
    let (moves, bound) = (table::number(result.moves), table::number(result.bound));
    let all = table::number(shards);
    format!("moves: {moves}, at most {bound} (⌈{all}/{count}⌉ + {count})\nmax - min: {spread}")
}

fn moves(input: &PlanInput<'_>, result: &CalculatedPlan, shards: &[Shard]) -> String {
    let id = |at: Option<usize>| at.map_or("nobody", |at| input.ids[at].as_str());
    let owners = result.before.iter().zip(&result.after);
    let moved = shards.iter().zip(owners).filter(|(_, (before, after))| before != after);
    let line = |(shard, (before, after)): (&Shard, (&Option<usize>, &Option<usize>))| {
        [table::name(shard), id(*before).to_owned(), "→".to_owned(), id(*after).to_owned()]
    };
    let lines: Vec<[String; 4]> = moved.take(MAX_MOVES_LISTED).map(line).collect();
    let rest = table::more(result.moves - lines.len());
    let table = table::table(&lines, [false; 4]);
    [table].into_iter().chain(rest).collect::<Vec<_>>().join("\n")
}
