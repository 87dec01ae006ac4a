//! Several rate limits acquired as one.
use super::turns::{Refusal, Taken};
use crate::outcome::Rejected;

/// A rate limit that [`try_acquire_all`] accepts: a
/// [`RateLimiter`](crate::throttling::RateLimiter), or a [`KeyLimit`](crate::throttling::KeyLimit),
/// the limit of one key.
///
/// This trait is sealed.
pub trait Limit: sealed::Sealed {}

pub(crate) mod sealed {
    use super::{Refusal, Rejected, Taken};

    pub trait Sealed {
        /// Takes one permit now.
        #[expect(private_interfaces, reason = "sealed: only this crate calls or implements it")]
        fn take_one(&self) -> Result<Taken, Refusal>;
        /// Gives back a permit that `take_one` returned.
        #[expect(private_interfaces, reason = "sealed: only this crate calls or implements it")]
        fn give_back(&self, taken: Taken);
        /// Returns the time that one permit would have to wait now. Takes nothing.
        #[expect(private_interfaces, reason = "sealed: only this crate calls or implements it")]
        fn refusal(&self) -> Refusal;
        /// Builds the rejection and sends its event.
        #[expect(private_interfaces, reason = "sealed: only this crate calls or implements it")]
        fn reject(&self, refusal: Refusal) -> Rejected;
    }
}

/// Takes one permit of each limit, or none: `try_acquire_all(&[&overall, &per_minute])`. For limits
/// of several types, `try_acquire_all::<dyn Limit>(&[&overall, &tenants.for_key(tenant)])`.
///
/// # Errors
/// The rejection of the limit with the longest wait. Its `retry_after` is the exact time after
/// which all limits have a permit, if no other caller takes it. Permits that other limits had given
/// are given back.
pub fn try_acquire_all<L: Limit + ?Sized>(limits: &[&L]) -> Result<(), Rejected> {
    let Some((first, others)) = limits.split_first() else { return Ok(()) };
    match first.take_one() {
        // Recursion keeps the taken permits on the stack, without an allocation.
        Ok(taken) => try_acquire_all(others).inspect_err(|_| first.give_back(taken)),
        Err(refusal) => {
            let waits = others.iter().map(|limit| (limit, limit.refusal()));
            let (longest, refusal) = waits.fold((first, refusal), |a, b| if b.1 > a.1 { b } else { a });
            Err(longest.reject(refusal))
        }
    }
}
