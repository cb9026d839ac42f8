//! [`Fence`]: run an effect under a token, or refuse it.
//!
//! A leader can be paused between asking "am I leader?" and acting. Only the resource itself can refuse what comes too
//! late, by comparing the token *inside* its write. Where the resource is a database, compare there (see
//! [`recipes`](crate::guide::fencing)). Where it is in this process, or guarded by it, use a [`Fence`].

use std::fmt;

use tokio::sync::Mutex;

use crate::lease::Token;

/// Lets effects through in the order of their tokens: after one with a newer token, none with an older.
///
/// There is no bare check: between a check and its effect somebody else could come.
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
    /// A fence kept only in memory: it forgets when this process ends, so it fences only what ends with it.
    pub fn in_memory() -> Self {
        Fence::default()
    }

    /// Runs `effect` unless something with a newer token has run. Others wait until it has ended.
    ///
    /// # Cancellation
    /// An effect that is dropped half-way counts as run.
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

/// The effect was not run: somebody with a newer token was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleToken {
    /// What the effect came with.
    pub token: Token,
    /// What the fence has let through.
    pub newer: Token,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StaleToken { token, newer } = self;
        write!(f, "token {token} is stale: {newer} has been here. Somebody else leads now; stop")
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

    /// The mutant: the same comparison, and then the effect when the fence is free again.
    async fn in_two_steps<T>(
        fence: &Fence,
        token: Token,
        effect: impl AsyncFnOnce() -> T,
    ) -> Result<T, StaleToken> {
        fence.run(token, async || ()).await?;
        Ok(effect().await)
    }

    /// An old leader is stopped in the middle of its effect, a new one comes, the old one goes on. What was written, in order.
    async fn written_by_old_and_new(two_steps: bool) -> Vec<u64> {
        let fence = Arc::new(Fence::in_memory());
        let written = Arc::new(StdMutex::new(Vec::new()));
        let middle = Arc::new(Barrier::new(2));
        let old = tokio::spawn({
            let (fence, written, middle) = (fence.clone(), written.clone(), middle.clone());
            async move {
                let effect = async || {
                    middle.wait().await;
                    // As long as the new leader can get on, it does.
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
    async fn nothing_older_lands_after_something_newer() {
        assert_eq!(written_by_old_and_new(false).await, [7, 8]);
    }

    #[tokio::test]
    async fn check_and_effect_in_two_steps_would_be_caught() {
        assert_eq!(written_by_old_and_new(true).await, [8, 7], "the old effect landed last");
    }
}
