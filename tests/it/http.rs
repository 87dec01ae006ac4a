//! HTTP and gRPC at the edges of a call: verdicts, hints, rejections as responses, deadlines as headers.
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use proptest::prelude::*;
use steadfast::{
    Class, Classify, FailureKind, Hint, Pipeline, PolicyError, PolicyKind, Reason, Rejected, Verdict,
    call::{AttemptInfo, not_idempotent},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    http::{
        ByGrpc, ByStatus, GrpcCode, LONGEST_HINT, RateLimit, answer, deadline, grpc_status, grpc_verdict,
        kind_by_source, kind_of, policy_answer, refusal, retry_after, retry_after_value, status_of,
    },
    outcome::StopReason,
    retry::{Retry, RetryConfig},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimiter},
    time::{Clock, Timestamp},
    timeout::Timeout,
};

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;
/// 2026-11-21 09:00:00 UTC.
const NOW: Timestamp = Timestamp::from_millis(1_795_251_600_000);

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    let mut map = HeaderMap::new();
    fields.iter().map(field).for_each(|(name, value)| {
        map.append(name, value);
    });
    map
}

fn response(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    *answer.headers_mut() = headers(fields);
    answer
}

fn judge(status: u16, fields: &[(&'static str, &str)]) -> Verdict {
    ByStatus::new().with_wall_time(|| NOW).classify(&Ok::<_, ()>(response(status, fields)))
}

#[test]
fn a_status_is_judged_by_the_table() {
    use FailureKind::{Client, Other, Overloaded, Server, Throttled, Timeout};
    for (status, kind) in [
        (100, None),
        (200, None),
        (304, None),
        (399, None),
        (400, Some(Client)),
        (404, Some(Client)),
        (408, Some(Timeout)),
        (409, Some(Client)),
        (429, Some(Throttled)),
        (499, Some(Client)),
        (500, Some(Server)),
        (501, Some(Client)),
        (502, Some(Server)),
        (503, Some(Overloaded)),
        (504, Some(Timeout)),
        (505, Some(Client)),
        (529, Some(Overloaded)),
        (599, Some(Server)),
        (600, Some(Other)),
        (999, Some(Other)),
    ] {
        assert_eq!(judge(status, &[]).kind(), kind, "{status}");
        assert_eq!(kind_of(StatusCode::from_u16(status).unwrap()), kind, "{status}");
    }
    assert_eq!(ByStatus::new().classify(&Err::<Response<()>, _>("no answer")).kind(), Some(Other));
}

#[test]
fn a_business_answer_is_not_a_failure_of_the_service() {
    let (clock, time) = Clock::manual();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(5, 5)).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone()).classify(ByStatus::new());
    for status in [400, 401, 404, 409, 422, 501].repeat(5) {
        let mut calls = 0;
        let call = pipeline.call(|| {
            calls += 1;
            std::future::ready(Ok::<_, ()>(response(status, &[])))
        });
        assert_eq!(time.block_on(call).unwrap().status(), status);
        assert_eq!((calls, breaker.state(), breaker.snapshot().failures), (1, State::Closed, 0), "{status}");
    }
}

#[test]
fn exceptions_and_a_judge_of_errors_replace_the_table() {
    let judge = ByStatus::new()
        .except(|status| (status == 404).then_some(Class::Success))
        .errors(|error: &std::io::Error| Verdict::failure(kind_by_source(error)));
    assert!(judge.classify(&Ok(response(404, &[]))).is_success());
    assert_eq!(judge.classify(&Ok(response(410, &[]))).kind(), Some(FailureKind::Client));
    let late = std::io::ErrorKind::TimedOut.into();
    assert_eq!(judge.classify(&Err::<Response<()>, _>(late)).kind(), Some(FailureKind::Timeout));
    // An exception also applies to a status that would be a success.
    let strict = ByStatus::new().except(|status| (status == 202).then_some(Class::Ignore));
    assert_eq!(strict.classify(&Ok::<_, ()>(response(202, &[]))).class(), Class::Ignore);
}

#[test]
fn retry_after_is_read_as_seconds_and_as_a_date() {
    let read = |fields: &[_]| retry_after(&headers(fields), NOW);
    for (value, wait) in [
        ("0", S(0)),
        ("7", S(7)),
        (" 7 ", S(7)),
        ("1.5", MS(1500)),
        ("Sat, 21 Nov 2026 09:00:30 GMT", S(30)),
        ("Saturday, 21-Nov-26 09:00:30 GMT", S(30)),
        ("Sat Nov 21 09:00:30 2026", S(30)),
        ("Sat, 21 Nov 2026 08:00:00 GMT", S(0)), // past
        ("Thu, 01 Jan 1970 00:00:00 GMT", S(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_HINT),
        ("86401", LONGEST_HINT),
        ("99999999999999999999999999", LONGEST_HINT),
        ("5, 60", S(60)), // two headers in one
    ] {
        assert_eq!(read(&[("retry-after", value)]), Some(wait), "{value}");
    }
    for garbage in ["", "-1", "-0", "+5", "soon", "5 s", "0x10", "NaN", "1e3", "Sat, 32 Nov 2026 09:00:30 GMT", ",,"] {
        assert_eq!(read(&[("retry-after", garbage)]), None, "{garbage}");
    }
    // The longest of several values counts; an unreadable value is ignored.
    assert_eq!(
        read(&[("retry-after", "5"), ("retry-after", "x"), ("retry-after", "9"), ("retry-after", "1")]),
        Some(S(9))
    );
    assert_eq!(read(&[("retry-after-ms", "250")]), Some(MS(250)));
    assert_eq!(read(&[("x-ms-retry-after-ms", "2000"), ("retry-after", "1")]), Some(S(2)));
    let mut bytes = HeaderMap::new();
    bytes.insert("retry-after", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    assert_eq!(retry_after(&bytes, NOW), None);
}

#[test]
fn a_date_is_measured_against_the_response_s_own_date() {
    let read = |date| retry_after(&headers(&[("retry-after", "Sat, 21 Nov 2026 09:00:30 GMT"), ("date", date)]), NOW);
    assert_eq!(read("Sat, 21 Nov 2026 09:00:10 GMT"), Some(S(20)));
    assert_eq!(read("Sat, 21 Nov 2026 11:00:00 GMT"), Some(S(0)));
    assert_eq!(read("no date"), Some(S(30)));
}

#[test]
fn rate_limit_headers_are_read_in_all_forms() {
    let read = |fields: &[_]| RateLimit::read(&headers(fields), NOW).map(|l| (l.limit, l.remaining, l.reset));
    let some = |limit, remaining, reset: u64| Some((limit, Some(remaining), Some(S(reset))));
    assert_eq!(read(&[("ratelimit", r#""default";r=50;t=30"#)]), some(None, 50, 30));
    assert_eq!(read(&[("ratelimit", "limit=100, remaining=50, reset=5")]), some(Some(100), 50, 5));
    let three = [("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "5")];
    assert_eq!(read(&three), some(Some(100), 0, 5));
    let old = [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1795251642")];
    assert_eq!(read(&old), some(Some(60), 3, 42));
    assert_eq!(read(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795251642000")]), some(None, 0, 42));
    assert_eq!(read(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")]), some(None, 0, 9));
    let discord =
        [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795251642"), ("x-ratelimit-reset-after", "1.5")];
    assert_eq!(read(&discord).unwrap().2, Some(MS(1500)));
    // The newer form takes precedence, and of several limits the one that binds.
    assert_eq!(read(&[("ratelimit", r#""a";r=9;t=1"#), ("ratelimit-remaining", "1")]), some(None, 9, 1));
    let many = [("ratelimit", r#""a";r=9;t=1, "b,\";r=0";r=0;t=7"#), ("ratelimit", r#""c";r=0;t=3"#)];
    assert_eq!(read(&many), some(None, 0, 7));
    for garbage in [r#""a""#, "", ";;;", "limit=", "r=1", "\"", "limit=x, remaining=-1"] {
        assert_eq!(read(&[("ratelimit", garbage)]), None, "{garbage}");
    }
    // It is a hint if nothing remains and no other header has one.
    let hint = |fields: &[_]| judge(429, fields).hint();
    assert_eq!(hint(&three), Hint::RetryAfter(S(5)));
    assert_eq!(hint(&old), Hint::None);
    assert_eq!(hint(&[three[1], three[2], ("retry-after", "2")]), Hint::RetryAfter(S(2)));
}

#[test]
fn a_hint_comes_with_a_failure_and_a_long_hint_of_an_overloaded_service_means_away() {
    assert_eq!(judge(200, &[("retry-after", "9")]).hint(), Hint::None);
    assert_eq!(judge(429, &[("retry-after", "900")]).hint(), Hint::RetryAfter(S(900)));
    assert_eq!(judge(503, &[("retry-after", "59")]).hint(), Hint::RetryAfter(S(59)));
    assert_eq!(judge(503, &[("retry-after", "60")]).hint(), Hint::UnavailableFor(S(60)));
    let sooner = ByStatus::new().unavailable_from(S(5));
    let answer = response(503, &[("retry-after", "5")]);
    assert_eq!(sooner.verdict(answer.status(), answer.headers()).hint(), Hint::UnavailableFor(S(5)));

    // The breaker opens on that one response, for that time; the retry does not wait for it.
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone()).classify(ByStatus::new());
    let call = || std::future::ready(Ok::<_, ()>(response(503, &[("retry-after", "120")])));
    assert_eq!(time.block_on(pipeline.call(call)).unwrap().status(), 503);
    assert_eq!((breaker.state(), breaker.snapshot().retry_after), (State::Open, Some(S(120))));
}

// Guarantee: retry 3.
#[test]
fn the_delay_is_never_less_than_the_server_asks() {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).classify(ByStatus::new());
    let mut answers = [response(429, &[("retry-after", "11")]), response(200, &[])].into_iter();
    let started = time.now();
    time.block_on(pipeline.call(|| std::future::ready(Ok::<_, ()>(answers.next().unwrap())))).unwrap();
    assert!(time.now() - started >= S(11));
}

#[test]
fn grpc_s_status_and_push_back_are_read_from_headers_and_trailers() {
    let verdict = |fields: &[_]| grpc_verdict(&headers(fields));
    assert!(verdict(&[("grpc-status", "0")]).is_success());
    for (code, kind) in [
        ("1", FailureKind::Cancelled),
        ("4", FailureKind::Timeout),
        ("5", FailureKind::Client),
        ("8", FailureKind::Throttled),
        ("13", FailureKind::Server),
        ("14", FailureKind::Overloaded),
        ("17", FailureKind::Other),
        ("-1", FailureKind::Other),
        ("99999999999999999999", FailureKind::Other),
        ("x", FailureKind::Other),
    ] {
        assert_eq!(verdict(&[("grpc-status", code)]).kind(), Some(kind), "{code}");
    }
    assert_eq!(verdict(&[]).kind(), Some(FailureKind::Other));
    let push = |value| verdict(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", value)]).hint();
    assert_eq!(push("250"), Hint::RetryAfter(MS(250)));
    assert_eq!(push("0"), Hint::RetryAfter(S(0)));
    assert_eq!(push("99999999999999999999"), Hint::RetryAfter(LONGEST_HINT));
    for no in ["-1", "", "soon", "1.5", "+1"] {
        assert_eq!(push(no), Hint::DoNotRetry, "{no}");
    }
    let two = [("grpc-status", "14"), ("grpc-retry-pushback-ms", "5"), ("grpc-retry-pushback-ms", "7")];
    assert_eq!(verdict(&two).hint(), Hint::RetryAfter(MS(7)));
    for number in 0..17 {
        assert_eq!(i64::from(GrpcCode::of(number).number()), number);
    }

    // A response without a body is judged by its headers; one with a body is judged later.
    let by = |status, fields: &[_]| ByStatus::new().grpc().classify(&Ok::<_, ()>(response(status, fields)));
    assert_eq!(by(200, &two).kind(), Some(FailureKind::Overloaded));
    assert!(by(200, &[]).is_success());
    assert_eq!(by(503, &[("grpc-retry-pushback-ms", "-1"), ("retry-after", "1")]).hint(), Hint::DoNotRetry);
    assert!(ByStatus::new().classify(&Ok::<_, ()>(response(200, &two))).is_success());
}

// Guarantee: retry 3.
#[test]
fn a_negative_push_back_means_no_retry() {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).classify(ByGrpc);
    let mut busy = tonic::Status::unavailable("busy");
    busy.metadata_mut().insert("grpc-retry-pushback-ms", tonic::metadata::MetadataValue::from_static("-1"));
    let error = time.block_on(pipeline.call(|| std::future::ready(Err::<(), _>(busy.clone())))).unwrap_err();
    assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::DoNotRetry));
}

#[test]
fn tonic_s_status_is_judged_by_its_code_and_its_source() {
    let kind = |status| ByGrpc.classify(&Err::<(), _>(status)).kind();
    assert!(ByGrpc.classify(&Ok(())).is_success());
    assert_eq!(kind(tonic::Status::resource_exhausted("")), Some(FailureKind::Throttled));
    assert_eq!(kind(tonic::Status::not_found("")), Some(FailureKind::Client));
    assert_eq!(kind(tonic::Status::unavailable("")), Some(FailureKind::Overloaded));
    // As the channel creates it: with tonic's own error as the source.
    let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let connecting = tonic::ConnectError(Box::new(refused()));
    assert_eq!(kind(tonic::Status::from_error(Box::new(connecting))), Some(FailureKind::Connect));
    assert_eq!(kind(tonic::Status::from_error(Box::new(refused()))), Some(FailureKind::Other));
}

/// Linux ends an established connection with each of these, too: the server may have read the request.
#[test]
fn a_system_error_never_proves_that_nothing_was_sent() {
    use std::io::ErrorKind::{
        AddrNotAvailable, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
        NetworkUnreachable, NotConnected,
    };
    let (clock, time) = Clock::manual();
    for kind in [
        HostUnreachable,
        NetworkUnreachable,
        ConnectionRefused,
        AddrNotAvailable,
        NetworkDown,
        ConnectionReset,
        ConnectionAborted,
        NotConnected,
    ] {
        let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
        let judge = ByStatus::new().errors(|error: &std::io::Error| Verdict::failure(kind_by_source(error)));
        let pipeline = Pipeline::new().then(retry).classify(judge);
        let mut read = 0;
        let post = not_idempotent(|| {
            read += 1; // by the server, before the connection ended
            std::future::ready(Err::<Response<()>, _>(std::io::Error::from(kind)))
        });
        let error = time.block_on(pipeline.call(post)).unwrap_err();
        assert_eq!((error.verdict().kind(), read), (Some(FailureKind::Other), 1), "{kind}");
        // Wrapped, and from a gRPC client.
        assert_eq!(kind_by_source(&std::io::Error::other(std::io::Error::from(kind))), FailureKind::Other, "{kind}");
        let status = tonic::Status::from_error(Box::new(std::io::Error::from(kind)));
        assert_ne!(ByGrpc.classify(&Err::<(), _>(status)).kind(), Some(FailureKind::Connect), "{kind}");
    }
}

#[test]
fn a_rejection_becomes_a_response_with_a_time_to_return() {
    let (clock, _time) = Clock::manual();
    let rate = RateLimiter::builder(Quota::per_minute(40)).clock(&clock).build().unwrap();
    rate.try_acquire_n(40).unwrap();
    let told = |rejected: &Rejected| {
        let answer: Response<String> = refusal(rejected);
        let after = answer.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), after)
    };
    assert_eq!(told(&rate.try_acquire().unwrap_err()), (429, Some("2".into()))); // after 1.5 s: rounded up
    assert_eq!(told(&rate.try_acquire_n(41).unwrap_err()), (429, None)); // never
    let places = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap();
    let _place = places.try_acquire().unwrap();
    assert_eq!(told(&places.try_acquire().unwrap_err()), (503, None));
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    breaker.force_open(S(9));
    assert_eq!(told(&breaker.try_acquire().unwrap_err()), (503, Some("9".into())));
    assert_eq!(told(&Rejected::new(PolicyKind::Custom("x"), Reason::Custom("y"))), (503, None));
    assert_eq!(retry_after_value(Duration::MAX), u64::MAX.to_string());
    assert_eq!(retry_after_value(Duration::ZERO), "0");
}

#[test]
fn a_failed_call_becomes_a_response_by_its_cause() {
    let (clock, time) = Clock::manual();
    for (kind, status) in [
        (FailureKind::Timeout, 504),
        (FailureKind::Throttled, 503),
        (FailureKind::Overloaded, 503),
        (FailureKind::Connect, 502),
        (FailureKind::Server, 502),
        (FailureKind::Client, 500),
        (FailureKind::Other, 500),
    ] {
        let pipeline =
            Pipeline::new().classify(move |_: &Result<(), ()>| Verdict::failure(kind).with_retry_after(MS(1)));
        let error = time.block_on(pipeline.call(async || Err::<(), ()>(()))).unwrap_err();
        let told: Response<Vec<u8>> = answer(&error);
        assert_eq!((told.status().as_u16(), &told.headers()["retry-after"]), (status, &HeaderValue::from(1)), "{kind}");
    }
    let pipeline = Pipeline::new().then(Timeout::builder(S(1)).clock(&clock).build());
    let error = time.block_on(pipeline.call(std::future::pending::<Result<(), ()>>)).unwrap_err();
    assert_eq!(status_of(&error), 504);
    // The same of the error that a service keeps.
    let told: Response<()> = policy_answer(&error.into_operation().unwrap_err());
    assert_eq!((told.status().as_u16(), told.headers().len()), (504, 0));
    let rejected = Rejected::new(PolicyKind::RateLimit, Reason::RateLimited).with_retry_after(MS(1_500));
    let told: Response<()> = policy_answer(&PolicyError::from(rejected));
    assert_eq!((told.status().as_u16(), &told.headers()["retry-after"]), (429, &HeaderValue::from(2)));

    // The same in gRPC.
    let limiter = RateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    limiter.try_acquire().unwrap();
    let call = async || Err::<(), _>(tonic::Status::not_found("key"));
    let status = |error| {
        let status = grpc_status(error);
        (status.code(), status.metadata().get("grpc-retry-pushback-ms").map(|v| v.to_str().unwrap().to_owned()))
    };
    let refused = time.block_on(Pipeline::new().then(limiter).call(call)).unwrap_err();
    assert_eq!(status(refused), (tonic::Code::ResourceExhausted, Some("1000".into())));
    let late = time.block_on(pipeline.call(std::future::pending::<Result<(), tonic::Status>>)).unwrap_err();
    assert_eq!(status(late), (tonic::Code::DeadlineExceeded, None));
    assert_eq!(status(time.block_on(pipeline.call(call)).unwrap_err()), (tonic::Code::NotFound, None));
}

// Guarantee: timeout 1.
#[test]
fn a_deadline_travels_as_a_header() {
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new().then(Timeout::builder(S(2)).clock(&clock).build());
    let mut sent = HeaderMap::new();
    let call = pipeline.call_with(|attempt| {
        deadline::write(&mut sent, attempt.remaining(clock.now()).unwrap());
        deadline::write_grpc(&mut sent, attempt.remaining(clock.now()).unwrap());
        async { Ok::<_, ()>(()) }
    });
    time.block_on(call).unwrap();
    assert_eq!(
        (&sent["x-request-timeout-ms"], &sent["grpc-timeout"]),
        (&"2000".parse().unwrap(), &"2000000u".parse().unwrap())
    );
    // The server side, whose own limit is longer.
    sent.insert("x-request-timeout-ms", HeaderValue::from(300));
    let outer = AttemptInfo::with_deadline(time.now() + deadline::read(&sent).unwrap());
    let error = time.block_on(pipeline.call_within(outer, std::future::pending::<Result<(), ()>>)).unwrap_err();
    assert!(matches!(error.cause(), steadfast::Cause::TimedOut(t) if t.after == MS(300)), "{error:?}");
}

// Guarantee: timeout 1.
#[test]
fn deadline_headers_are_read_in_all_units_and_the_shortest_holds() {
    let read = |fields: &[_]| deadline::read(&headers(fields));
    for (value, left) in [
        ("5n", Duration::from_nanos(5)),
        ("5u", Duration::from_micros(5)),
        ("5m", MS(5)),
        ("5S", S(5)),
        ("5M", S(300)),
        ("5H", S(18_000)),
        ("00000000H", S(0)),
        ("99999999H", Duration::from_nanos(u64::MAX)), // at most 584 years
    ] {
        assert_eq!(read(&[("grpc-timeout", value)]), Some(left), "{value}");
    }
    for garbage in ["", "S", "5", "5s", "-5S", "5.5S", "123456789S", "5 S", "5SS", "٣S"] {
        let mut map = HeaderMap::new();
        map.insert("grpc-timeout", HeaderValue::from_bytes(garbage.as_bytes()).unwrap());
        assert_eq!(deadline::read(&map), None, "{garbage}");
    }
    assert_eq!(
        read(&[("grpc-timeout", "5S"), ("x-request-timeout-ms", "900"), ("x-request-timeout-ms", "x")]),
        Some(MS(900))
    );
    let envoy = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
    let mut map = HeaderMap::new();
    deadline::write_as(&mut map, envoy.clone(), MS(1234));
    assert_eq!((deadline::read_as(&map, &envoy), deadline::read(&map)), (Some(MS(1234)), None));
}

const NAMES: [&str; 16] = [
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "date",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-timeout",
    "x-request-timeout-ms",
];

/// Any bytes that a header may hold, and texts that resemble valid values.
fn value() -> impl Strategy<Value = HeaderValue> {
    let near = prop_oneof![
        "-?[0-9]{0,25}(\\.[0-9]{0,12})?[numSMH]?",
        "[A-Z][a-z]{2}, [0-9]{1,3} (Jan|Feb|Nov|Xyz) [0-9]{1,6} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
        "(\"[a-z\\\\\",;]{0,4}\"|limit|[a-z]{1,3})(;|=|,|;r=|;t=|, remaining=)[0-9]{0,22}(;[a-z]=[0-9]{0,22}){0,3}",
    ]
    .prop_map(String::into_bytes);
    let any = prop::collection::vec(prop_oneof![0x20..0x7f_u8, 0x80..=0xff_u8], 0..40);
    prop_oneof![4 => near, 1 => any].prop_filter_map("a header's bytes", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

proptest! {
    /// Hostile headers cause no panic, and no wait above the maximum.
    #[test]
    fn hostile_headers_never_panic_and_are_clamped(
        fields in prop::collection::vec((prop::sample::select(&NAMES[..]), value()), 0..8),
        status in 100..1000_u16,
        now in any::<u64>(),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name, value);
        }
        let now = Timestamp::from_millis(now);
        if let Some(wait) = retry_after(&map, now) {
            prop_assert!(wait <= LONGEST_HINT);
        }
        if let Some(limit) = RateLimit::read(&map, now) {
            prop_assert!(limit.reset.unwrap_or_default() <= LONGEST_HINT);
            prop_assert!(limit != RateLimit::default());
        }
        let _ = deadline::read(&map);
        for verdict in [
            grpc_verdict(&map),
            ByStatus::new().verdict(StatusCode::from_u16(status).unwrap(), &map),
            ByStatus::new().grpc().verdict(StatusCode::from_u16(status).unwrap(), &map),
        ] {
            prop_assert!(verdict.hint().retry_after().unwrap_or_default() <= LONGEST_HINT);
            prop_assert!(verdict.hint() == Hint::None || verdict.is_failure());
        }
    }

    // Guarantee: timeout 1.
    /// A deadline that is read back is at most the written one.
    #[test]
    fn a_deadline_that_is_read_back_is_no_longer_than_written(nanos in any::<u64>()) {
        let left = Duration::from_nanos(nanos);
        let mut map = HeaderMap::new();
        deadline::write(&mut map, left);
        let plain = deadline::read(&map).unwrap();
        prop_assert!(plain <= left && left - plain < MS(1));
        map.clear();
        deadline::write_grpc(&mut map, left);
        let grpc = deadline::read(&map).unwrap();
        prop_assert!(grpc <= left);
        // Eight digits: the last unit is at most a millionth, except at the step from one unit to the next.
        prop_assert!((left - grpc).as_nanos() <= left.as_nanos() / 100_000);
    }
}
