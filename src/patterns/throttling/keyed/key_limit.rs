//! The limit of one key of a keyed rate limiter, as a policy and as one of several limits.
use std::{
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    time::Duration,
};

use super::KeyedRateLimiter;
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    outcome::{CallError, Outcome, PolicyKind, Rejected},
    throttling::{
        Limit,
        rate::{
            sealed::Sealed,
            turns::{Refusal, Taken},
        },
    },
};

/// The limit of one key, returned by [`KeyedRateLimiter::for_key`]. It is a policy, and a limit for
/// [`try_acquire_all`](crate::throttling::try_acquire_all). It holds the key and the limiter, and
/// no state of its own.
#[derive(Clone)]
pub struct KeyLimit<K, S = RandomState> {
    limiter: KeyedRateLimiter<K, S>,
    key: K,
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// Returns the limit of `key`, as a policy of a pipeline and for
    /// [`try_acquire_all`](crate::throttling::try_acquire_all).
    pub fn for_key(&self, key: K) -> KeyLimit<K, S> {
        KeyLimit { limiter: KeyedRateLimiter::share(self), key }
    }
}

impl<K, S> KeyLimit<K, S>
where
    K: Eq + Hash + Clone + Send + Sync,
    S: BuildHasher + Send + Sync,
{
    /// Runs `operation` under this limit alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn. Afterwards the permit is used.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

call::blocking_door!([K: Eq + Hash + Clone + Send + Sync, S: BuildHasher + Send + Sync] KeyLimit<K, S>);

impl<K, S> Policy for KeyLimit<K, S>
where
    K: Eq + Hash + Clone + Send + Sync,
    S: BuildHasher + Send + Sync,
{
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.limiter.acquire_for(&self.key, cx.deadline()).await {
            Ok(()) => {
                let outcome = inner.attempt(cx).await;
                if outcome.is_failure() {
                    let longest = self.limiter.0.max_hint();
                    let time = inner.call_state().hint().retry_after().unwrap_or_default().min(longest);
                    if time > Duration::ZERO {
                        self.limiter.pause(&self.key, time);
                    }
                }
                outcome
            }
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.limiter.config().limit;
        let settings = format!("{} calls every {:?}, for each key", config.permits, config.per);
        explanation.push(Layer::new(PolicyKind::RateLimit, self.limiter.name_of(&self.key), settings));
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Limit for KeyLimit<K, S> {}

#[expect(private_interfaces, reason = "sealed")]
impl<K: Eq + Hash + Clone, S: BuildHasher> Sealed for KeyLimit<K, S> {
    fn take_one(&self) -> Result<Taken, Refusal> {
        self.limiter.take(&self.key, 1)
    }

    fn give_back(&self, taken: Taken) {
        self.limiter.give_back(&self.key, taken);
    }

    fn refusal(&self) -> Refusal {
        self.limiter.refusal(&self.key)
    }

    fn reject(&self, refusal: Refusal) -> Rejected {
        self.limiter.rejected(&self.key, refusal)
    }
}

crate::build::debug_fields!([K, S] KeyLimit<K, S>, |this| limiter: this.limiter);
