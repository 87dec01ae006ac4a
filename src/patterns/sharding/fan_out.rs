//! Fan-out: queries many shards with limited concurrency and a deadline.
use std::{fmt, future::Future, pin::pin};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{FanOutConfig, map::ShardId};
use crate::{
    build::{Builder, Common, Component},
    config::ConfigError,
    port::within,
    time::Clock,
};

/// Queries many shards with limited concurrency and a deadline. The result holds, for each shard,
/// its value or the reason for its failure.
///
/// ```
/// use steadfast::sharding::{FanOut, FanOutConfig, ShardId};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let fan_out = FanOut::new(FanOutConfig::default()).unwrap();
/// let count = |shard: ShardId| async move { if shard.0 == 2 { Err("down") } else { Ok(10) } };
/// let answers = fan_out.run(&[0, 1, 2].map(ShardId), count).await;
///
/// // Partial: the available results.
/// assert_eq!(answers.results.iter().map(|(_, n)| n).sum::<i32>(), 20);
/// // Complete: an error that names the failed shards.
/// assert_eq!(answers.complete().unwrap_err().to_string(), "1 of 3 shards failed: shard-2: down");
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct FanOut {
    config: FanOutConfig,
    clock: Clock,
}

/// Reason for which a shard returned no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardFailure<E> {
    /// The operation failed.
    #[error("{0}")]
    Failed(E),
    /// The operation did not finish by the deadline, and was dropped.
    #[error("not finished by the deadline")]
    TimedOut,
    /// The deadline passed before the operation was started.
    #[error("not started before the deadline")]
    NotStarted,
}

/// Result of a fan-out, in the order of the given shards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FanOutResult<T, E> {
    /// The results of the shards that succeeded.
    pub results: Vec<(ShardId, T)>,
    /// The shards that failed, with the reasons.
    pub failures: Vec<(ShardId, ShardFailure<E>)>,
}

/// Error of a fan-out of which some shards failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardsFailed<E> {
    /// The shards that failed, with the reasons.
    pub failures: Vec<(ShardId, ShardFailure<E>)>,
    /// The number of queried shards.
    pub asked: usize,
}

impl<E: fmt::Display> fmt::Display for ShardsFailed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} shards failed:", self.failures.len(), self.asked)?;
        for (i, (shard, failure)) in self.failures.iter().enumerate() {
            write!(f, "{} {shard}: {failure}", if i == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for ShardsFailed<E> {}

impl<T, E> FanOutResult<T, E> {
    /// Returns all results, or an error that names the failed shards.
    ///
    /// # Errors
    /// [`ShardsFailed`].
    pub fn complete(self) -> Result<Vec<(ShardId, T)>, ShardsFailed<E>> {
        let asked = self.results.len() + self.failures.len();
        if self.failures.is_empty() { Ok(self.results) } else { Err(ShardsFailed { failures: self.failures, asked }) }
    }
}

impl Component for FanOut {
    type Built = Result<Self, ConfigError>;
    type Spec = FanOutConfig;

    fn assemble(config: FanOutConfig, Common { clock, .. }: Common) -> Self::Built {
        config.check()?;
        Ok(Self { config, clock })
    }
}

impl FanOut {
    /// Creates a fan-out with these settings.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting violates its rule.
    pub fn new(config: FanOutConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a fan-out.
    pub fn builder(config: FanOutConfig) -> Builder<Self> {
        Builder::new(config)
    }

    /// Runs an operation on each of these shards. Give each shard a pipeline with its own breaker,
    /// so that a failing shard does not block the others.
    ///
    /// # Cancel safety
    /// That of the operations: running ones are dropped, with this future or at the deadline.
    pub async fn run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        shards: &[ShardId],
        mut operation: impl FnMut(ShardId) -> F,
    ) -> FanOutResult<T, E> {
        let mut answers: Vec<Option<Result<T, ShardFailure<E>>>> = shards.iter().map(|_| None).collect();
        let mut waiting = shards.iter().copied().enumerate();
        let mut running = FuturesUnordered::new();
        let mut ask = |(at, shard)| {
            let answer = operation(shard);
            async move { (at, answer.await) }
        };
        {
            let answers = &mut answers;
            let running = &mut running;
            let all = async {
                running.extend(waiting.by_ref().take(self.config.max_concurrency).map(&mut ask));
                while let Some((at, answer)) = running.next().await {
                    answers[at] = Some(answer.map_err(ShardFailure::Failed));
                    running.extend(waiting.next().map(&mut ask));
                }
            };
            within(&self.clock, self.config.timeout, pin!(all)).await;
        }
        let not_asked = waiting.next().map_or(shards.len(), |(at, _)| at);
        let mut out = FanOutResult { results: Vec::new(), failures: Vec::new() };
        for (at, (shard, answer)) in shards.iter().zip(answers).enumerate() {
            let late = if at < not_asked { ShardFailure::TimedOut } else { ShardFailure::NotStarted };
            match answer.unwrap_or(Err(late)) {
                Ok(value) => out.results.push((*shard, value)),
                Err(failure) => out.failures.push((*shard, failure)),
            }
        }
        out
    }
}

/// Returns the first `limit` items of several sorted sources, in order. Of equal items that of the
/// earlier source comes first. Reads at most `limit` items from each.
///
/// Query each shard for its first `limit` rows, in order, and merge the results.
pub fn merge_sorted<T: Ord, I: Iterator<Item = T>>(sources: impl IntoIterator<Item = I>, limit: usize) -> Vec<T> {
    if limit == 0 {
        return Vec::new();
    }
    let mut sources: Vec<I> = sources.into_iter().collect();
    let mut heads: std::collections::BinaryHeap<_> = (0..)
        .zip(&mut sources)
        .filter_map(|(i, source): (usize, _)| source.next().map(|head| std::cmp::Reverse((head, i))))
        .collect();
    let mut merged = Vec::new();
    while let Some(std::cmp::Reverse((head, i))) = heads.pop() {
        merged.push(head);
        if merged.len() == limit {
            break;
        }
        heads.extend(sources[i].next().map(|head| std::cmp::Reverse((head, i))));
    }
    merged
}
