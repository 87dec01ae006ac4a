//! The boxed pipeline has the methods of the plain one, and they behave the same.
use std::{collections::BTreeSet, fs, future::ready, time::Duration};

use steadfast::{
    BoxedPipeline, FailureKind, Pipeline,
    call::{AttemptInfo, idempotent, not_idempotent},
    hedge::{Hedge, HedgeConfig},
    retry::{Retry, RetryConfig},
    testing::{ScriptedError, ScriptedService},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Returns the names of the public methods of a file.
fn methods(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("{}/src/call/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let signatures = text.lines().filter_map(|line| {
        let line = line.trim_start().strip_prefix("pub ")?;
        let name = ["const fn ", "async fn ", "fn "].iter().find_map(|start| line.strip_prefix(start))?;
        Some(name.split(['(', '<']).next()?.to_owned())
    });
    signatures.collect()
}

// Guarantee: call 2.
/// Only the methods that build a pipeline, or name its types, are missing.
#[test]
fn a_boxed_pipeline_has_the_methods_of_a_pipeline() {
    let (plain, boxed) = (methods("pipeline.rs"), methods("boxed.rs"));
    assert!(plain.len() > 10 && plain.contains("call_within_or"), "{plain:?}");
    let missing: Vec<_> = plain.difference(&boxed).map(String::as_str).collect();
    assert_eq!(missing, ["classify", "named", "new", "policy", "then"]);
    let more: Vec<_> = boxed.difference(&plain).map(String::as_str).collect();
    assert_eq!(more, ["boxed"]);
}

// Guarantee: call 2.
#[test]
fn a_boxed_pipeline_behaves_as_the_plain_one() {
    macro_rules! check {
        ($box:expr) => {{
            let (clock, time) = Clock::manual();
            let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
            let plain = Pipeline::new().named("p").then(Timeout::builder(MS(60_000)).clock(&clock).build()).then(retry);
            let calls = $box(plain.classify(ScriptedService::classify));
            let service = |script| ScriptedService::new(script, &clock).unwrap();
            let mut log = vec![format!("{:?} {}", calls.name(), calls.explain())];

            let twice = service("503 x2, ok");
            log.push(format!("{:?}", time.block_on(calls.call(idempotent(|| twice.call())))));
            // A closure that receives the attempt: it has no mark, so it runs once.
            let seen = service("503, ok");
            let call = calls.call_with(|attempt| {
                assert!(attempt.deadline().is_some());
                seen.call()
            });
            log.push(format!("{:?} {}", time.block_on(call), seen.calls()));

            // The deadline of the outer attempt holds.
            let outer = || AttemptInfo::with_deadline(time.now() + MS(45));
            let (slow, start) = (service("ok in 1s"), time.now());
            let error = time.block_on(calls.call_within(outer(), || slow.call())).unwrap_err();
            assert!(error.is_timed_out() && time.now() - start == MS(45), "{error}");
            log.push(error.to_string());

            let fails = service("503");
            let answer = time.block_on(calls.call_or_marked(|| fails.call(), |_| ready(Ok(7)))).unwrap();
            assert_eq!(answer.error().unwrap().verdict().kind(), Some(FailureKind::Overloaded));
            log.push(format!("{answer:?}"));
            let slow = service("ok in 1s");
            let answer = time.block_on(calls.call_within_or_marked(
                outer(),
                || slow.call(),
                |failed| {
                    assert!(failed.within().deadline().is_some());
                    ready(Ok(8))
                },
            ));
            let answer = answer.unwrap();
            assert!(answer.is_degraded() && answer.error().unwrap().is_timed_out());
            log.push(format!("{answer:?}"));

            let call = calls.call_or(|| fails.call(), |_| ready(Ok(7)));
            log.push(format!("{:?}", time.block_on(call)));
            let call = calls.call_within_or(outer(), || slow.call(), |_| ready(Ok(8)));
            log.push(format!("{:?}", time.block_on(call)));

            let warnings = calls.explain_for(&not_idempotent(|| fails.call())).warnings();
            assert!(warnings.iter().any(|w| w.contains("not marked as idempotent")), "{warnings:?}");
            log.extend(warnings);
            log
        }};
    }
    fn boxes<P: steadfast::call::Policy + 'static, C>(calls: Pipeline<P, C>) -> BoxedPipeline<u16, ScriptedError>
    where
        C: steadfast::Classify<u16, ScriptedError> + 'static,
    {
        calls.into()
    }
    let (plain, boxed) = (check!(|calls| calls), check!(boxes));
    assert!(plain.iter().any(|line| line == "Ok(7)") && plain.iter().any(|line| line == "Ok(8)"), "{plain:?}");
    assert_eq!(plain, boxed);
    assert!(plain[0].starts_with("Some(\"p\")") && plain.len() >= 9, "{plain:?}");
    let hedge = Pipeline::new().then(Hedge::new(HedgeConfig::default()).unwrap()).boxed::<u8, ()>();
    let charge = not_idempotent(|| async { Ok::<_, ()>(7) });
    assert!(hedge.explain_for(&charge).warnings().iter().any(|w| w.contains("not marked as idempotent")));
    assert_eq!(hedge.name(), None);
}
