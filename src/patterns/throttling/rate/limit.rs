//! Several rate limits checked as one.
use super::turns::{Refusal, Taken};
use crate::outcome::Rejected;

/// A rate limit that takes part in [`check_all`]: a [`RateLimiter`](crate::throttling::RateLimiter), or the limit of one key,
/// [`KeyLimit`](crate::throttling::KeyLimit).
///
/// Implemented by this crate alone.
pub trait Limit: sealed::Sealed {}

pub(crate) mod sealed {
    use super::{Refusal, Rejected, Taken};

    pub trait Sealed {
        /// Takes a permit now.
        #[expect(private_interfaces, reason = "nobody else calls or implements it")]
        fn take_one(&self) -> Result<Taken, Refusal>;
        /// Gives it back.
        #[expect(private_interfaces, reason = "nobody else calls or implements it")]
        fn give_back(&self, taken: Taken);
        /// How long a permit would have to wait now. Takes nothing.
        #[expect(private_interfaces, reason = "nobody else calls or implements it")]
        fn refusal(&self) -> Refusal;
        /// Builds the rejection, and tells of it.
        #[expect(private_interfaces, reason = "nobody else calls or implements it")]
        fn reject(&self, refusal: Refusal) -> Rejected;
    }
}

/// Takes a permit of each limit, or of none: `check_all(&[&for_all, &per_minute])`, or, of several types,
/// `check_all::<dyn Limit>(&[&for_all, &tenants.for_key(tenant)])`.
///
/// # Errors
/// The rejection of the limit that takes longest: its time to come back is the exact time after which all of them have a permit
/// (if nobody else takes it). What the others had given is given back.
pub fn check_all<L: Limit + ?Sized>(limits: &[&L]) -> Result<(), Rejected> {
    let Some((first, others)) = limits.split_first() else { return Ok(()) };
    match first.take_one() {
        // By recursion, so that the stack remembers what was taken: no allocation.
        Ok(taken) => check_all(others).inspect_err(|_| first.give_back(taken)),
        Err(refusal) => {
            let waits = others.iter().map(|limit| (limit, limit.refusal()));
            let (longest, refusal) = waits.fold((first, refusal), |a, b| if b.1 > a.1 { b } else { a });
            Err(longest.reject(refusal))
        }
    }
}
