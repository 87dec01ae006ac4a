//! The knowledge that the layer needs about requests: copies for further attempts, and properties
//! of the call.
use crate::{
    call::{AttemptInfo, CallContext, OperationName},
    outcome::Priority,
};

/// Knowledge about requests of type `Req`. Any `Fn(&Req) -> Option<Req>` implements it, with
/// defaults for all but [`another`](Self::another).
pub trait Requests<Req>: Send + Sync {
    /// Returns a copy of the request, for an attempt that another may follow or run beside; `None`
    /// if the request cannot be repeated. Called only inside a retry or a hedge.
    fn another(&self, request: &Req) -> Option<Req>;

    /// Returns `true` if [`another`](Self::another) would return a copy. A hedge calls this before
    /// its first attempt.
    fn can_repeat(&self, request: &Req) -> bool {
        self.another(request).is_some()
    }

    /// Returns `true` if sending the request twice has the effect of sending it once. `None`, the
    /// default, leaves the decision to the policies, as for an
    /// [`Operation`](crate::call::Operation::is_idempotent) without a mark: by default a retry
    /// repeats it only after a failure that proves that it was not sent.
    fn is_idempotent(&self, _request: &Req) -> Option<bool> {
        None
    }

    /// Returns the priority of the call; by default `None`.
    fn priority(&self, _request: &Req) -> Option<Priority> {
        None
    }

    /// Returns the name of the operation, for a pipeline that serves several; by default `None`.
    fn name(&self, _request: &Req) -> Option<&'static OperationName> {
        None
    }

    /// Returns the outer attempt that the request is part of; by default `None`. The call ends no
    /// later than its deadline, on the clock of the pipeline's policies, and a retry leaves further
    /// attempts to the outer retry.
    fn outer(&self, _request: &Req) -> Option<AttemptInfo> {
        None
    }

    /// Prepares the request of an attempt before it is sent, for example with the remaining time in
    /// a header.
    fn before_attempt(&self, _request: &mut Req, _cx: CallContext<'_>) {}
}

/// Requests that are cloned for further attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByClone;

impl<Req: Clone> Requests<Req> for ByClone {
    fn another(&self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }

    fn can_repeat(&self, _: &Req) -> bool {
        true
    }
}

/// Requests that cannot be cloned: each call has one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Once;

impl<Req> Requests<Req> for Once {
    fn another(&self, _: &Req) -> Option<Req> {
        None
    }
}

impl<Req, F: Fn(&Req) -> Option<Req> + Send + Sync> Requests<Req> for F {
    fn another(&self, request: &Req) -> Option<Req> {
        self(request)
    }
}
