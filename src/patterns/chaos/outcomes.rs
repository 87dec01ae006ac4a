//! Replaced results: an adapter around the operation, because a policy sees no values.
use std::future::Future;

use super::Chaos;
use crate::{
    call::{CallContext, Operation, as_inside},
    outcome::LastFailure,
};

/// Operation whose results are replaced at times: see [`Chaos::outcomes`].
#[derive(Debug, Clone)]
pub struct WithOutcomes<O, M> {
    pub(super) chaos: Chaos,
    pub(super) operation: O,
    pub(super) make: M,
}

impl<O, M> Operation for WithOutcomes<O, M>
where
    O: Operation,
    M: FnMut() -> Result<O::Output, O::Error> + Send,
{
    type Output = O::Output;
    type Error = O::Error;

    as_inside!(operation: is_idempotent, is_spent, priority, name, can_overlap, on_retry);

    async fn run(&mut self, cx: CallContext<'_>) -> Result<O::Output, O::Error> {
        if self.chaos.replaces(cx) { (self.make)() } else { self.operation.run(cx).await }
    }

    fn start(
        &mut self,
        cx: CallContext<'_>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O, M>> {
        self.start_after(cx, None)
    }

    fn run_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> impl Future<Output = Result<O::Output, O::Error>> + Send {
        let work = if self.chaos.replaces(cx) { Err((self.make)()) } else { Ok(self.operation.run_after(cx, last)) };
        async move {
            match work {
                Ok(work) => work.await,
                Err(made_up) => made_up,
            }
        }
    }

    fn start_after(
        &mut self,
        cx: CallContext<'_>,
        last: Option<LastFailure<'_, O::Error>>,
    ) -> Option<impl Future<Output = Result<O::Output, O::Error>> + Send + use<O, M>> {
        let work =
            if self.chaos.replaces(cx) { Err((self.make)()) } else { Ok(self.operation.start_after(cx, last)?) };
        Some(async move {
            match work {
                Ok(work) => work.await,
                Err(made_up) => made_up,
            }
        })
    }
}
