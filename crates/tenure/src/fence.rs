//! [`Fence`]: runs an effect under a token, or refuses it.
//!
//! A leader can be paused between the check "am I leader?" and its effect. Only the resource itself can refuse a late effect,
//! by comparing the token *inside* its write. If the resource is a database, compare there (see
//! [`fencing`](crate::docs::fencing)). If it is in this process, or guarded by it, use a [`Fence`].

use std::fmt;

use tokio::sync::Mutex;

use crate::lease::Token;

/// Runs effects in the order of their tokens: after an effect with a newer token, none with an older one.
///
/// There is no separate check: another leader could act between a check and its effect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Fence, Token};
///
/// let fence = Fence::in_memory();
/// let (old, new) = (Token::new(7)?, Token::new(8)?);
/// assert_eq!(fence.run(new, async || "written").await, Ok("written"));
/// assert!(fence.run(old, async || "too late").await.is_err());
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    greatest: Mutex<Option<Token>>,
}

impl Fence {
    /// A fence kept only in memory. It forgets its tokens when this process ends, so it fences only effects that end with the
    /// process.
    pub fn in_memory() -> Self {
        Fence::default()
    }

    /// Runs `effect` unless an effect with a newer token has run. Other effects wait until it has ended.
    ///
    /// # Cancellation
    /// An effect that is dropped before it ends counts as run.
    pub async fn run<T>(
        &self,
        token: Token,
        effect: impl AsyncFnOnce() -> T,
    ) -> Result<T, StaleToken> {
        let mut greatest = self.greatest.lock().await;
        match *greatest {
            Some(newer) if newer > token => return Err(StaleToken { token, newer }),
            _ => *greatest = Some(token),
        }
        Ok(effect().await)
    }
}

/// The effect was not run, because an effect with a newer token has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleToken {
    /// The token of the refused effect.
    pub token: Token,
    /// The newest token that the fence has accepted.
    pub newer: Token,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StaleToken { token, newer } = self;
        write!(
            f,
            "token {token} is stale: the resource has accepted {newer}. Another candidate leads now; stop"
        )
    }
}

impl std::error::Error for StaleToken {}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex as StdMutex};

    use super::*;
    use tokio::sync::Barrier;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    /// The mutant: the same comparison, but the effect runs after the fence was unlocked.
    async fn in_two_steps<T>(
        fence: &Fence,
        token: Token,
        effect: impl AsyncFnOnce() -> T,
    ) -> Result<T, StaleToken> {
        fence.run(token, async || ()).await?;
        Ok(effect().await)
    }

    /// An old leader is paused during its effect, a new leader runs its own, and the old one continues. Returns what was
    /// written, in order.
    async fn written_by_old_and_new(two_steps: bool) -> Vec<u64> {
        let fence = Arc::new(Fence::in_memory());
        let written = Arc::new(StdMutex::new(Vec::new()));
        let middle = Arc::new(Barrier::new(2));
        let old = tokio::spawn({
            let (fence, written, middle) = (fence.clone(), written.clone(), middle.clone());
            async move {
                let effect = async || {
                    middle.wait().await;
                    // Lets the new leader run as far as it can.
                    for _ in 0..100 {
                        tokio::task::yield_now().await;
                    }
                    written.lock().unwrap().push(7);
                };
                match two_steps {
                    true => in_two_steps(&fence, token(7), effect).await,
                    false => fence.run(token(7), effect).await,
                }
            }
        });
        middle.wait().await;
        let new = fence.run(token(8), async || written.lock().unwrap().push(8)).await;
        assert_eq!(new, Ok(()));
        old.await.unwrap().unwrap();
        let late = fence.run(token(7), async || written.lock().unwrap().push(7)).await;
        assert_eq!(late, Err(StaleToken { token: token(7), newer: token(8) }));
        let written = written.lock().unwrap();
        written.clone()
    }

    #[tokio::test]
    async fn no_older_effect_lands_after_a_newer_one() {
        assert_eq!(written_by_old_and_new(false).await, [7, 8]);
    }

    #[tokio::test]
    async fn check_and_effect_in_two_steps_would_be_caught() {
        assert_eq!(written_by_old_and_new(true).await, [8, 7], "the old effect landed last");
    }
}
