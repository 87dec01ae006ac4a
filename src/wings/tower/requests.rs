//! What the layer asks about requests: another for another attempt, and what they say of the call they are part of.
use crate::{
    call::{AttemptInfo, CallContext, OperationName},
    outcome::Priority,
};

/// Knows requests of type `Req`. Any `Fn(&Req) -> Option<Req>` does, as far as another attempt needs one.
pub trait Requests<Req>: Send + Sync {
    /// A request like this one, for an attempt that may be followed by another, or runs beside another; nothing if it cannot be repeated.
    /// Asked only inside a retry or a hedge.
    fn another(&self, request: &Req) -> Option<Req>;

    /// Whether [`another`](Self::another) gives one. A hedge asks before it begins.
    fn can_repeat(&self, request: &Req) -> bool {
        self.another(request).is_some()
    }

    /// Returns whether sending it twice is as good as once. `None`, the default, leaves the answer
    /// to the policies, as for an [`Operation`](crate::call::Operation::is_idempotent) without a
    /// mark: a retry by its defaults repeats it only after a failure that proves that it was not
    /// sent.
    fn is_idempotent(&self, _request: &Req) -> Option<bool> {
        None
    }

    /// How much its call matters; by default it does not say.
    fn priority(&self, _request: &Req) -> Option<Priority> {
        None
    }

    /// Which operation it is, where one pipeline serves several; by default it does not say.
    fn name(&self, _request: &Req) -> Option<&'static OperationName> {
        None
    }

    /// The attempt that it is part of: by its deadline, on the clock of the pipeline's policies, all that is in the pipeline ends no later, and a
    /// retry leaves the attempts to a retry around it. By default it is part of none.
    fn outer(&self, _request: &Req) -> Option<AttemptInfo> {
        None
    }

    /// Told of each attempt before its request is sent: to put its number or what is left of its time into a header.
    fn before_attempt(&self, _request: &mut Req, _cx: CallContext<'_>) {}
}

/// Clones the request.
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

/// Never another request: for those that cannot be cloned.
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
