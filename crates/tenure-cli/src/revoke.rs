//! `tenure revoke`: break-glass. The only command that can cause two leaders, so it asks for confirmation.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::Args as ClapArgs;
use tenure::store::{Revoke, Store};
use tenure::{Error, Lease, Name, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::status::LeaseJson;
use crate::{duration, output, selector, store_access};

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure revoke billing:nightly          the leader is refused; free when its time has run out
  tenure revoke billing:nightly --now    free at once: two leaders are possible
  tenure revoke billing:nightly --yes    without the question

Try 'tenure resign' first: a leader that still answers hands over safely.
Exit codes: 0 revoked; 122 store unreachable; 123 an operator must act;
125 usage, not confirmed, or there is no such lease.")]
pub(crate) struct RevokeArgs {
    /// The lease
    #[arg(value_parser = selector::name)]
    name: Name,

    /// Free it at once: until the old leader notices, two leaders are possible
    #[arg(long)]
    now: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, revoke: &RevokeArgs) -> Result<Exit> {
    let name = &revoke.name;
    crate::runtime()?.block_on(async {
        let store = store_access::open(args).await?;
        if !revoke.yes {
            let question = question(&*store, revoke).await?;
            if !io::stdin().is_terminal() {
                return Err(Error::invalid(format!(
                    "to revoke '{name}' without a terminal to ask on, give --yes"
                )));
            }
            confirm(name, &question, &mut io::stdin().lock(), &mut io::stderr().lock())?;
        }
        let when = if revoke.now { Revoke::Now } else { Revoke::InTime };
        let lease = store_access::with_timeout(
            &store.url(),
            store_access::STORE_TIMEOUT,
            store.revoke(name, when),
        )
        .await?;
        if args.json {
            output::json(&LeaseJson::from(&lease))?;
        } else {
            output::line(sentence(&lease))?;
        }
        Ok(Exit::Done)
    })
}

/// The question: what is about to happen, and to which leader.
async fn question(store: &dyn Store, revoke: &RevokeArgs) -> Result<String> {
    let name = &revoke.name;
    let lease = store_access::observe_one(store, name).await?;
    let Some(holder) = lease.and_then(|lease| lease.holder) else {
        return Ok(format!("Nobody leads '{name}': only its token will be raised."));
    };
    let then = match revoke.now {
        true => "Another can lead at once, before it has noticed: two leaders are possible.",
        false => "Its renewals will be refused, and another can lead when its time has run out.",
    };
    Ok(format!("'{}' leads '{name}'. {then}", output::printable(&holder.id)))
}

/// Returns an error unless the user types the name.
fn confirm(
    name: &Name,
    question: &str,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<()> {
    let failed = |error: io::Error| Error::denied(format!("cannot ask on the terminal: {error}"));
    write!(output, "{question}\nType the name to revoke it: ").map_err(failed)?;
    output.flush().map_err(failed)?;
    let mut typed = String::new();
    input.read_line(&mut typed).map_err(failed)?;
    if typed.trim() != name.as_str() {
        return Err(Error::invalid(format!("that is not '{name}': nothing was revoked")));
    }
    Ok(())
}

fn sentence(lease: &Lease) -> String {
    let name = &lease.name;
    match &lease.holder {
        None => format!("Revoked: '{name}' can be had again at once."),
        Some(holder) => format!(
            "Revoked: '{name}' can be had again in {}, when the time of '{}' has run out.",
            duration::shown(lease.left.max(Duration::from_millis(1))),
            output::printable(&holder.id)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_itself_confirms() {
        let name = Name::new("a:b").unwrap();
        for (typed, accepted) in [("a:b\n", true), ("a:b", true), ("yes\n", false), ("", false)] {
            let mut printed = Vec::new();
            let answer = confirm(&name, "Really?", &mut typed.as_bytes(), &mut printed);
            assert_eq!(answer.is_ok(), accepted, "{typed:?}");
            let printed = String::from_utf8(printed).unwrap();
            assert_eq!(printed, "Really?\nType the name to revoke it: ");
        }
    }
}
