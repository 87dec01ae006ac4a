//! An unmarked operation runs once, by whichever method it is called.
use std::{
    future::ready,
    io::Error,
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

use steadfast::{
    BoxedPipeline, Pipeline,
    call::{AttemptInfo, idempotent, with_state},
    hedge::{Hedge, HedgeConfig},
    standard::{Standard, StandardConfig},
    time::Clock,
};

use super::MS;

// Guarantee: hedge 5.
/// Regression: a hedge repeated every operation that was not marked, so a POST was sent three times
/// and the standard stack charged twice.
#[test]
fn an_operation_without_a_mark_runs_once_through_every_method() {
    let (clock, time) = Clock::manual();
    let sent = AtomicU32::new(0);
    let post = || {
        sent.fetch_add(1, SeqCst);
        let clock = clock.clone();
        async move {
            clock.sleep(MS(500)).await;
            Ok::<_, Error>(7)
        }
    };
    let config = || HedgeConfig::after(MS(10)).max_attempts(3);
    let hedge = Hedge::builder(config()).clock(&clock).build().unwrap();
    let standard = Standard::builder(StandardConfig::default().hedge(config())).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(&hedge);
    let stack = standard.clone().into_pipeline();
    let nested = Pipeline::new().then(&hedge).then(&standard);
    let boxed: BoxedPipeline<i32, Error> = Pipeline::new().then(hedge.clone()).boxed();
    let boxed_stack: BoxedPipeline<i32, Error> = standard.clone().into_pipeline().boxed();
    let within = || AttemptInfo::with_deadline(time.now() + MS(60_000));
    let (mut one, mut two) = (0, 0);

    type Call<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;
    let calls: [(&str, Call<'_>); 12] = [
        ("policy", Box::pin(async { hedge.call(post).await.is_ok() })),
        ("pipeline", Box::pin(async { pipeline.call(post).await.is_ok() })),
        ("pipeline, within", Box::pin(async { pipeline.call_within(within(), post).await.is_ok() })),
        ("pipeline, fallback", Box::pin(async { pipeline.call_or(post, |_| ready(Ok(1))).await.is_ok() })),
        ("pipeline, local", Box::pin(async { pipeline.call_local(post).await.is_ok() })),
        ("boxed", Box::pin(async { boxed.call(post).await.is_ok() })),
        ("boxed, within", Box::pin(async { boxed.call_within(within(), post).await.is_ok() })),
        ("standard", Box::pin(async { stack.call(post).await.is_ok() })),
        ("standard, boxed", Box::pin(async { boxed_stack.call(post).await.is_ok() })),
        ("standard in a hedge", Box::pin(async { nested.call(post).await.is_ok() })),
        ("state", Box::pin(async { pipeline.call(with_state(&mut one, async |_| post().await)).await.is_ok() })),
        ("standard, state", Box::pin(async { stack.call(with_state(&mut two, async |_| post().await)).await.is_ok() })),
    ];
    for (name, call) in calls {
        sent.store(0, SeqCst);
        assert!(time.block_on(call), "{name}");
        assert_eq!(sent.load(SeqCst), 1, "{name}");
    }
    // The same hedges start further attempts beside a marked operation.
    for marked in [
        &mut (Box::pin(async { pipeline.call(idempotent(post)).await.is_ok() }) as Call<'_>),
        &mut (Box::pin(async { stack.call(idempotent(post)).await.is_ok() }) as Call<'_>),
    ] {
        sent.store(0, SeqCst);
        assert!(time.block_on(marked));
        assert_eq!(sent.load(SeqCst), 3);
    }
}
