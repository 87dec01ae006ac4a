//! Requests to a port with a time limit.
use std::{future::Future, time::Duration};

use super::{Failure, PortError, PortErrorKind};
use crate::{
    race::{First, race},
    time::{Clock, Instant},
};

/// The failure of a request with a time limit.
#[derive(Debug)]
pub(crate) enum AskError<E> {
    /// The port answered with an error.
    Failed(E),
    /// No answer came in time. The request may have been applied.
    TimedOut,
}

impl<E: Failure> AskError<E> {
    /// Returns the kind of the backend's failure, or `None` if there was no answer.
    pub(crate) fn kind(&self) -> Option<PortErrorKind> {
        match self {
            Self::Failed(error) => error.backend().map(PortError::kind),
            Self::TimedOut => None,
        }
    }
}

impl<E: From<PortError>> AskError<E> {
    /// Returns the port's error, or a time-out with this message and an unknown outcome.
    pub(crate) fn or_timed_out(self, message: &str) -> E {
        match self {
            Self::Failed(error) => error,
            Self::TimedOut => PortError::new(PortErrorKind::TimedOut, message).outcome_unknown().into(),
        }
    }
}

/// Waits for a future, at most for `limit`.
#[inline]
pub(crate) async fn within<F: Future>(clock: &Clock, limit: Duration, future: F) -> Option<F::Output> {
    let until = clock.now() + limit;
    // The timer is created only if the future is not ready at once.
    match race(future, async { clock.sleep_until(until).await }).await {
        First::One(output) => Some(output),
        First::Other(()) => None,
    }
}

/// Waits for the answer to a request, at most for `limit`.
pub(crate) async fn ask<T, E>(
    clock: &Clock,
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, AskError<E>> {
    match within(clock, limit, request).await {
        Some(answer) => answer.map_err(AskError::Failed),
        None => Err(AskError::TimedOut),
    }
}

/// Waits for the answer to a request until `deadline`.
pub(crate) async fn ask_until<T, E>(
    clock: &Clock,
    deadline: Instant,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, AskError<E>> {
    match race(request, async { clock.sleep_until(deadline).await }).await {
        First::One(answer) => answer.map_err(AskError::Failed),
        First::Other(()) => Err(AskError::TimedOut),
    }
}

/// Waits for the answer to a request, at most for `limit`. An answer that came in time and is seen
/// late counts as a time-out, because what it says is then too old.
pub(crate) async fn ask_on_time<T, E>(
    clock: &Clock,
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, AskError<E>> {
    let latest = clock.now() + limit;
    let answer = ask_until(clock, latest, request).await?;
    if clock.now() <= latest { Ok(answer) } else { Err(AskError::TimedOut) }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_seen_late_counts_as_a_time_out_where_its_age_matters() {
        let (clock, time) = Clock::manual();
        let limit = Duration::from_secs(1);
        let answer = |after| {
            let time = &time;
            async move {
                time.advance(after);
                Ok::<_, PortError>(after)
            }
        };
        assert!(matches!(time.block_on(ask_on_time(&clock, limit, answer(limit))), Ok(after) if after == limit));
        assert!(matches!(time.block_on(ask_on_time(&clock, limit, answer(limit * 2))), Err(AskError::TimedOut)));
        assert!(matches!(time.block_on(ask(&clock, limit, answer(limit * 2))), Ok(after) if after == limit * 2));
    }

    #[test]
    fn the_time_of_a_request_includes_that_of_its_first_poll() {
        let (clock, time) = Clock::manual();
        let (limit, start) = (Duration::from_secs(1), clock.now());
        let blocks = async {
            time.advance(limit * 2);
            std::future::pending::<()>().await;
        };
        assert!(time.block_on(within(&clock, limit, blocks)).is_none());
        assert_eq!(clock.now() - start, limit * 2);
    }
}
