//! A prober before real servers on loopback, in the time of a manual clock.
use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, StatusCode},
    routing::get,
};
use reqwest::{
    Certificate, Client, Proxy,
    dns::{Addrs, Name, Resolve, Resolving},
};
use steadfast::{
    Builder, ConfigError,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    health::{
        HealthStatus as Is, ProbeError, ProbeFailure as Failure, ProbeReport, Prober, ProberConfig,
        ProberEvent as Event, RoundOutcome as Outcome, Target,
    },
    observe,
    time::{Clock, ManualClock, Timestamp},
};
use tokio::{net::TcpListener, sync::Notify};

use crate::world::{MS, S};

/// A service of several tenants, whose server answers an unknown page with 200.
#[derive(Clone)]
struct Service {
    address: SocketAddr,
    clock: Clock,
    time: ManualClock,
    /// Told of each request to `/slow/..` and `/away`.
    asked: Arc<Notify>,
    is_away: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<String>>>,
    most_at_once: Arc<AtomicUsize>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, (clock, time)) = (listener.local_addr().unwrap(), Clock::manual());
        let (asked, is_away) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(true)));
        let (connections, most_at_once) = (Arc::default(), Arc::default());
        let service = Self { address, clock, time, asked, is_away, connections, most_at_once };
        let (slow, away, seen, held) = (service.clone(), service.clone(), service.clone(), service.clone());
        let (now, has_answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let app = Router::new()
            .route("/good", get(async || "all is well"))
            .route("/tenants/ada", get(async || "healthy"))
            .route("/tenants/bob", get(async || (StatusCode::SERVICE_UNAVAILABLE, "unhealthy")))
            .route("/missing", get(async || (StatusCode::NOT_FOUND, "healthy")))
            .route("/moved", get(async || (StatusCode::FOUND, [("location", "/good")])))
            .route("/large", get(async || format!("{}healthy", " ".repeat(64 * 1024 - 6))))
            .route("/whole", get(async || format!("{}healthy", " ".repeat(64 * 1024 - 7))))
            .route(
                "/slow/{millis}",
                get(async move |Path(millis): Path<u64>| {
                    let ends = slow.clock.now() + MS(millis);
                    slow.asked.notify_one();
                    slow.clock.sleep_until(ends).await;
                    "healthy"
                }),
            )
            .route(
                "/away",
                get(async move || {
                    away.asked.notify_one();
                    if away.is_away.load(SeqCst) { (StatusCode::BAD_GATEWAY, "") } else { (StatusCode::OK, "healthy") }
                }),
            )
            .route(
                "/seen",
                get(async move |headers: HeaderMap| {
                    seen.connections.lock().unwrap().push(headers["host"].to_str().unwrap().to_owned());
                    "healthy"
                }),
            )
            .route(
                "/once",
                get(async move || match has_answered.swap(true, SeqCst) {
                    false => (StatusCode::OK, "healthy"),
                    true => (StatusCode::BAD_GATEWAY, "healthy"),
                }),
            )
            .route(
                "/held",
                get(async move || {
                    held.most_at_once.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    for _ in 0..50 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, SeqCst);
                    "healthy"
                }),
            )
            .fallback(async || "this page is not here");
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        service
    }

    fn target(&self, path: &str) -> Target {
        Target::new(path, format!("http://{}{path}", self.address)).text("healthy")
    }

    /// Returns a builder with both known targets.
    fn prober(&self) -> Builder<Prober> {
        let good = Target::new("good", format!("http://{}/good", self.address)).text("all is well");
        let bad = Target::new("bad", format!("http://{}/no-such-page", self.address)).text("healthy");
        Prober::builder(ProberConfig::default()).clock(&self.clock).name("outside").known_good(good).known_bad(bad)
    }

    /// Probes one target.
    async fn probe(&self, target: Target) -> ProbeReport {
        self.prober().target(target).build().unwrap().round().await.targets.remove(0)
    }

    /// Returns names of which each is this address after this time.
    fn names(&self, takes: u64) -> Names {
        Names { is: vec![self.address.ip()], takes, service: self.clone() }
    }
}

/// Names that are known after a time.
struct Names {
    is: Vec<IpAddr>,
    takes: u64,
    service: Service,
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        assert!(name.as_str().ends_with(".test"), "{name:?}");
        let found: Vec<_> = self.is.iter().map(|address| SocketAddr::new(*address, 0)).collect();
        let (service, ends) = (self.service.clone(), self.service.clock.now() + MS(self.takes));
        Box::pin(async move {
            service.asked.notify_one();
            service.clock.sleep_until(ends).await;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Event>>>);

impl Told {
    fn by(&self, builder: Builder<Prober>) -> Builder<Prober> {
        let events = self.clone();
        builder.on_event(move |event: &observe::Event<Event>| events.0.lock().unwrap().push(event.what.clone()))
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn judged(report: &ProbeReport) -> (Is, Option<Failure>, Option<u16>) {
    (report.status, report.failure, report.code)
}

// Guarantee: health 7.
#[tokio::test]
async fn a_target_is_well_with_the_status_and_the_text_that_are_expected() {
    let service = Service::start().await;
    let of = async |target| judged(&service.probe(target).await);
    assert_eq!(of(service.target("/tenants/ada")).await, (Is::Healthy, None, Some(200)));
    assert_eq!(of(service.target("/tenants/bob")).await, (Is::Unhealthy, Some(Failure::Status), Some(503)));
    assert_eq!(of(service.target("/missing")).await, (Is::Unhealthy, Some(Failure::Status), Some(404)));
    assert_eq!(of(service.target("/missing").status(404)).await, (Is::Healthy, None, Some(404)));
    // A redirect is an answer of its own.
    assert_eq!(of(service.target("/moved")).await, (Is::Unhealthy, Some(Failure::Status), Some(302)));
    // Nobody listens there.
    let gone = Target::new("gone", "http://127.0.0.1:1/");
    assert_eq!(of(gone).await, (Is::Unhealthy, Some(Failure::NoAnswer), None));
}

// Guarantee: health 7.
#[tokio::test]
async fn a_missing_page_that_is_answered_with_200_is_found_by_its_text() {
    let service = Service::start().await;
    let missing = service.probe(service.target("/no-such-page")).await;
    assert_eq!(judged(&missing), (Is::Unhealthy, Some(Failure::MissingText), Some(200)));
    // The text may be the end of the first 64 KiB, and not beyond them.
    assert_eq!(judged(&service.probe(service.target("/whole")).await), (Is::Healthy, None, Some(200)));
    let large = service.probe(service.target("/large")).await;
    assert_eq!(judged(&large), (Is::Unhealthy, Some(Failure::MissingText), Some(200)));
}

// Guarantee: health 7.
#[tokio::test]
async fn a_prober_warns_of_a_target_without_an_expected_text() {
    let service = Service::start().await;
    let silent = Target::new("silent", format!("http://{}/no-such-page", service.address));
    let prober = service.prober().target(silent).target(service.target("/tenants/ada")).build().unwrap();
    let explained = prober.explain();
    let warnings: Vec<_> = explained.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("target `silent` expects no text: a missing page may answer 200"), "{warnings:?}");
    // It is as the warning says.
    assert_eq!(prober.round().await.targets[0].status, Is::Healthy);
}

// Guarantee: health 7.
#[tokio::test]
async fn the_latency_of_an_answer_and_the_time_of_a_look_up_are_told_apart() {
    let service = Service::start().await;
    let url = format!("http://shop.test:{}/slow/30", service.address.port());
    let shop = Target::new("shop", url).text("healthy").addresses([service.address.ip()]);
    let prober = service.prober().names(service.names(200)).target(shop).build().unwrap();
    let advance = async {
        service.asked.notified().await; // the name
        service.time.advance(MS(200));
        service.asked.notified().await; // the page
        service.time.advance(MS(30));
    };
    let (round, ()) = tokio::join!(prober.round(), advance);
    let shop = &round.targets[0];
    assert_eq!((shop.status, shop.look_up, shop.latency), (Is::Healthy, MS(200), MS(30)));
    assert_eq!(round.known_good.look_up, MS(0), "an address needs no look-up");
}

// Guarantee: health 7.
#[tokio::test]
async fn a_name_with_an_unexpected_address_is_unhealthy_and_nothing_is_sent_there() {
    let service = Service::start().await;
    let of = async |is: Vec<IpAddr>, expected: Vec<IpAddr>| {
        let url = format!("http://shop.test:{}/seen", service.address.port());
        let names = Names { is, ..service.names(0) };
        let prober = service.prober().names(names).target(Target::new("shop", url).addresses(expected));
        prober.build().unwrap().round().await.targets[0].failure
    };
    let (here, there) = (service.address.ip(), "203.0.113.7".parse().unwrap());
    assert_eq!(of(vec![here], vec![there]).await, Some(Failure::UnexpectedAddress));
    assert_eq!(of(vec![here, there], vec![here]).await, Some(Failure::UnexpectedAddress));
    assert_eq!(of(vec![], vec![]).await, Some(Failure::NoAddress));
    assert_eq!(*service.connections.lock().unwrap(), Vec::<String>::new());
    // One of several expected ones suffices, and its name is what the server hears.
    assert_eq!(of(vec![here], vec![there, here]).await, None);
    assert_eq!(*service.connections.lock().unwrap(), [format!("shop.test:{}", service.address.port())]);
    // An address in place of a name is compared, too; and the system knows this name.
    let by_address = service.target("/tenants/ada").addresses([there]);
    assert_eq!(service.probe(by_address).await.failure, Some(Failure::UnexpectedAddress));
    let local = Target::new("local", format!("http://localhost:{}/tenants/ada", service.address.port()));
    assert_eq!(service.probe(local).await.failure, None);
}

// Guarantee: health 7.
#[tokio::test]
async fn a_target_that_does_not_answer_is_dropped_at_the_time_limit() {
    let service = Service::start().await;
    let prober = service.prober().target(service.target("/slow/60000")).build().unwrap();
    let advance = async {
        service.asked.notified().await;
        service.time.advance(S(10));
    };
    let (round, ()) = tokio::join!(prober.round(), advance);
    let hangs = &round.targets[0];
    assert_eq!((judged(hangs), hangs.latency), ((Is::Unhealthy, Some(Failure::TimedOut), None), S(10)));
}

// Guarantee: health 8.
#[tokio::test]
async fn a_round_in_which_a_known_target_is_misjudged_is_inconclusive() {
    let (service, told) = (Service::start().await, Told::default());
    let well = service.target("/tenants/ada");
    let of = async |prober: Builder<Prober>| {
        let prober = told.by(prober.target(well.clone())).build().unwrap();
        let round = prober.round().await;
        assert_eq!(prober.last_round().as_deref(), Some(&round));
        (round.outcome, prober.ask("/tenants/ada").await)
    };
    assert_eq!(of(service.prober()).await, (Outcome::Conclusive(Is::Healthy), Ok(())));
    assert_eq!(told.take(), [Event::Changed { target: "/tenants/ada".into(), status: Is::Healthy }]);
    // The good one is not found: the prober's own network, say.
    let good = Target::new("good", "http://127.0.0.1:1/");
    let unknown = (Outcome::Inconclusive, Err(ProbeError::Inconclusive));
    assert_eq!(of(service.prober().known_good(good)).await, unknown);
    let events = told.take();
    let [Event::ProbeFailed { target, failure: Failure::NoAnswer, error, .. }, inconclusive, ..] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(target.as_str() == "good" && error.contains("refused"), "{events:?}");
    let both = Event::Inconclusive { known_good: Is::Unhealthy, known_bad: Is::Unhealthy };
    assert_eq!(*inconclusive, both);
    // The bad one is found well: a proxy that answers each page with 200, say.
    let bad = Target::new("bad", format!("http://{}/no-such-page", service.address));
    assert_eq!(of(service.prober().known_bad(bad)).await, unknown);
    let well = Event::Inconclusive { known_good: Is::Healthy, known_bad: Is::Healthy };
    assert_eq!(told.take(), [well.clone(), well]);
}

// Guarantee: health 8.
#[tokio::test]
async fn a_round_after_whose_targets_a_known_one_is_misjudged_is_inconclusive() {
    // The known good one is well at first, and fails when the targets have been asked.
    let service = Service::start().await;
    let prober = service.prober().target(service.target("/tenants/ada")).known_good(service.target("/once"));
    let round = prober.build().unwrap().round().await;
    assert_eq!(round.outcome, Outcome::Inconclusive);
    assert_eq!(judged(&round.known_good), (Is::Unhealthy, Some(Failure::Status), Some(502)));
    // The known bad one has another status at first than the one that is expected, and then that one.
    let service = Service::start().await;
    let bad = service.target("/once").status(502);
    let round = service.prober().target(service.target("/tenants/ada")).known_bad(bad);
    let round = round.build().unwrap().round().await;
    assert_eq!((round.outcome, judged(&round.known_bad)), (Outcome::Inconclusive, (Is::Healthy, None, Some(502))));
}

// Guarantee: health 8.
#[tokio::test]
async fn a_known_bad_target_that_does_not_answer_shows_nothing() {
    let (service, told) = (Service::start().await, Told::default());
    let gone = Target::new("bad", "http://127.0.0.1:1/");
    let prober = told.by(service.prober().known_bad(gone).target(service.target("/tenants/ada"))).build().unwrap();
    assert_eq!(prober.round().await.outcome, Outcome::Inconclusive);
    let events = told.take();
    let [Event::ProbeFailed { target, failure: Failure::NoAnswer, .. }, Event::Inconclusive { .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(target.as_str(), "bad");
    assert_eq!(prober.ask("/tenants/ada").await, Err(ProbeError::Inconclusive));
}

// Guarantee: health 8.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "no clock of ours moves a real server")]
async fn one_target_is_asked_beside_a_round_whose_targets_hang() {
    let service = Service::start().await;
    let of = |tenant| Target::new(format!("{tenant}"), format!("http://{}/slow/9000", service.address));
    let prober = (0..40).map(of).fold(service.prober(), Builder::<Prober>::target);
    let prober = prober.target(service.target("/tenants/ada")).build().unwrap();
    let asked = async {
        service.asked.notified().await; // the round is under way
        tokio::time::timeout(S(30), prober.ask("/tenants/ada")).await
    };
    tokio::select! {
        _ = prober.round() => panic!("nobody advances its time"),
        asked = asked => assert_eq!(asked.expect("it waits for the round"), Ok(())),
    }
}

// Guarantee: health 8.
#[tokio::test]
async fn a_prober_warns_of_rounds_that_may_take_longer_than_their_interval() {
    let service = Service::start().await;
    let of = |tenants: u32| {
        let of = |tenant| Target::new(format!("{tenant}"), "http://a.test").text("healthy");
        let prober = (0..tenants).map(of).fold(service.prober(), Builder::<Prober>::target).build().unwrap();
        prober.explain().warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // With the known ones, five rows of 32, and a sixth one of the known ones.
    assert_eq!(of(158), Vec::<String>::new());
    let warnings = of(159);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("a round may take 70s, which is longer than `interval`"), "{warnings:?}");
}

// Guarantee: health 7.
#[tokio::test]
async fn the_address_of_a_target_with_its_password_is_shown_nowhere() {
    let (service, told) = (Service::start().await, Told::default());
    let secret = Target::new("shop", "http://guard:pass-word@127.0.0.1:1/hidden?token=key");
    let shown = format!("{secret:?}");
    let prober = told.by(service.prober().target(secret)).build().unwrap();
    let round = prober.round().await;
    assert_eq!(round.targets[0].failure, Some(Failure::NoAnswer));
    let events = told.take();
    assert!(shown.contains("shop") && format!("{events:?}").contains("refused"), "{shown} {events:?}");
    for text in [shown, format!("{events:?}"), format!("{prober:?} {:?} {round:?}", prober.explain())] {
        for part in ["guard", "pass-word", "hidden", "key", "127.0.0.1"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }
}

// Guarantee: health 7.
#[tokio::test]
async fn a_proxy_of_the_client_or_of_the_environment_is_not_asked() {
    let service = Service::start().await;
    let nobody = || Client::builder().proxy(Proxy::all("http://127.0.0.1:1").unwrap());
    let prober = service.prober().client(nobody).target(service.target("/tenants/ada")).build().unwrap();
    assert_eq!(prober.round().await.outcome, Outcome::Conclusive(Is::Healthy));
    // A process has one environment for all of its tests, so this one is another.
    let mut other = Command::new(std::env::current_exe().unwrap());
    let test = "health::prober::a_target_is_well_with_the_status_and_the_text_that_are_expected";
    other.args([test, "--exact"]).envs([("http_proxy", "http://127.0.0.1:1"), ("all_proxy", "http://127.0.0.1:1")]);
    let other = other.env_remove("no_proxy").env_remove("NO_PROXY").output().unwrap();
    let told = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success() && told.contains("1 passed"), "{told}");
}

// Guarantee: health 8.
#[tokio::test]
async fn each_tenants_instance_is_asked_and_a_round_is_as_its_worst_target() {
    let (service, told) = (Service::start().await, Told::default());
    let ada = Target::new("ada", format!("http://{}/tenants/ada", service.address)).text("healthy");
    let away = Target::new("away", format!("http://{}/away", service.address)).text("healthy");
    let prober = told.by(service.prober()).target(ada).target(away).build().unwrap();
    let of = async || {
        let round = prober.round().await;
        (round.outcome, round.targets.iter().map(|probe| probe.status).collect::<Vec<_>>())
    };
    assert_eq!(of().await, (Outcome::Conclusive(Is::Unhealthy), vec![Is::Healthy, Is::Unhealthy]));
    let changed = |target: &str, status| Event::Changed { target: target.into(), status };
    let failed = Event::ProbeFailed {
        target: "away".into(),
        failure: Failure::Status,
        error: "status 502 instead of 200".to_owned(),
        latency: MS(0),
    };
    assert_eq!(told.take(), [failed.clone(), changed("ada", Is::Healthy), changed("away", Is::Unhealthy)]);
    // What has not changed is told once.
    assert_eq!(of().await.0, Outcome::Conclusive(Is::Unhealthy));
    assert_eq!(told.take(), [failed]);
    service.is_away.store(false, SeqCst);
    assert_eq!(of().await, (Outcome::Conclusive(Is::Healthy), vec![Is::Healthy, Is::Healthy]));
    assert_eq!(told.take(), [changed("away", Is::Healthy)]);
}

// Guarantee: health 8.
#[tokio::test]
async fn a_breaker_closes_when_its_prober_finds_the_target_well() {
    let service = Service::start().await;
    let prober = service.prober().target(service.target("/away")).build().unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    let breaker = breaker.clock(&service.clock).build().unwrap();
    let mut events = breaker.events();
    breaker.force_open(S(5));
    let probes = breaker.run(|| prober.ask("/away"), std::future::pending());
    let seen = async {
        service.time.advance(S(5));
        service.asked.notified().await; // the first probe, which fails
        while breaker.state() != State::Open {
            events.recv().await.unwrap();
        }
        service.is_away.store(false, SeqCst);
        service.time.advance(S(120));
        while breaker.state() != State::Closed {
            events.recv().await.unwrap();
        }
    };
    tokio::select! {
        () = probes => panic!("it ends with its shutdown alone"),
        () = seen => {}
    }
    assert_eq!(prober.ask("/no-such-target").await, Err(ProbeError::UnknownTarget));
}

// Guarantee: health 8.
#[tokio::test]
async fn a_prober_makes_a_round_in_each_interval_until_it_is_shut_down() {
    let service = Service::start().await;
    let (seen, told) = (Arc::new(Notify::new()), Told::default());
    let ended = seen.clone();
    let prober = told.by(service.prober()).target(service.target("/seen")).target(service.target("/tenants/bob"));
    // Sent at the end of each round.
    let prober = prober.on_event(move |event: &observe::Event<Event>| {
        if let Event::ProbeFailed { .. } = event.what {
            ended.notify_one();
        }
    });
    let prober = prober.build().unwrap();
    assert_eq!(prober.last_round(), None);
    let rounds = async {
        for round in 1..=3 {
            seen.notified().await;
            assert_eq!(service.connections.lock().unwrap().len(), round);
            assert_eq!(service.time.next_timer(), Some(service.time.now() + S(60)));
            service.time.advance(S(60));
        }
    };
    prober.run(rounds).await;
    assert!(prober.last_round().is_some());
    assert_eq!(told.take().len(), 2 + 3, "two targets have a first status, and one failed three times");
}

// Guarantee: health 9.
#[tokio::test]
async fn the_days_that_are_left_of_a_certificate_are_told_and_warn_and_fail() {
    let (service, tls) = (Service::start().await, Tls::start());
    let url = format!("https://localhost:{}/", tls.port);
    let root = Certificate::from_pem(&std::fs::read(tls.folder.path().join("cert.pem")).unwrap()).unwrap();
    let prober = service.prober().client(move || Client::builder().tls_certs_only([root.clone()]));
    let prober = prober.target(Target::new("shop", &url).text("s_server"));
    let prober = prober.target(Target::new("other page", &url).text("this is not there")).build().unwrap();
    let at = async |before: std::time::Duration| {
        service.time.set_wall(Timestamp::from_millis(tls.end.as_millis() - before.as_millis() as u64));
        let [shop, other] = <[_; 2]>::try_from(prober.round().await.targets).unwrap();
        assert_eq!((other.failure, other.days_left), (Some(Failure::MissingText), shop.days_left));
        (shop.status, shop.failure, shop.days_left)
    };
    let day = S(24 * 3600);
    assert_eq!(at(100 * day).await, (Is::Healthy, None, Some(100)));
    assert_eq!(at(21 * day + MS(1)).await, (Is::Healthy, None, Some(21)));
    assert_eq!(at(21 * day).await, (Is::Degraded, None, Some(21)));
    assert_eq!(at(7 * day + MS(1)).await, (Is::Degraded, None, Some(7)));
    assert_eq!(at(7 * day).await, (Is::Unhealthy, Some(Failure::Certificate), Some(7)));
    assert_eq!(at(MS(0)).await, (Is::Unhealthy, Some(Failure::Certificate), Some(0)));
    // One that nobody vouches for is no answer.
    let stranger = Target::new("shop", url).text("s_server");
    assert_eq!(service.probe(stranger).await.failure, Some(Failure::NoAnswer));
}

// Guarantee: health 9.
#[tokio::test]
async fn a_server_shows_its_certificate_to_each_probe_anew() {
    let (service, tls) = (Service::start().await, Tls::start());
    let root = Certificate::from_pem(&std::fs::read(tls.folder.path().join("cert.pem")).unwrap()).unwrap();
    let prober = service.prober().client(move || Client::builder().tls_certs_only([root.clone()]));
    // The page tells if the session is new. In one that is resumed, no certificate is shown.
    let shop = Target::new("shop", format!("https://localhost:{}/", tls.port)).text("New, TLSv1.3");
    let prober = prober.target(shop).build().unwrap();
    for _ in 0..3 {
        assert_eq!(judged(&prober.round().await.targets[0]), (Is::Healthy, None, Some(200)));
    }
}

// Guarantee: health 9.
#[tokio::test]
async fn a_certificate_that_was_swapped_is_seen_by_the_next_round() {
    let (service, mut tls, next) = (Service::start().await, Tls::of(30), Tls::of(300));
    let roots =
        [&tls, &next].map(|tls| Certificate::from_pem(&std::fs::read(tls.folder.path().join("cert.pem")).unwrap()));
    let roots = roots.map(Result::unwrap);
    let prober = service.prober().client(move || Client::builder().tls_certs_only(roots.clone()));
    let url = format!("https://localhost:{}/", tls.port);
    let prober = prober.target(Target::new("shop", url).text("s_server")).build().unwrap();
    service.time.set_wall(Timestamp::from_millis(tls.end.as_millis() - 20 * 24 * 3_600_000));
    let shop = prober.round().await.targets.remove(0);
    assert_eq!((shop.status, shop.days_left), (Is::Degraded, Some(20)));
    tls.swap(next);
    let shop = prober.round().await.targets.remove(0);
    assert_eq!((shop.status, shop.days_left), (Is::Healthy, Some(20 + 270)));
}

/// A server with a certificate of its own, by `openssl`.
struct Tls {
    folder: tempfile::TempDir,
    server: Child,
    port: u16,
    /// End of the certificate, as `openssl` reads it.
    end: Timestamp,
}

impl Tls {
    fn start() -> Self {
        Self::of(3650)
    }

    /// Starts a server whose certificate is of so many days.
    fn of(days: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = openssl(
            &folder,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days {days} -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
                 -keyout key.pem -out cert.pem"
            ),
        );
        let made = { made }.status().expect("missing: apt-get install openssl");
        assert!(made.success());
        let end = openssl(&folder, "x509 -in cert.pem -noout -enddate -dateopt iso_8601").output().unwrap();
        let end = String::from_utf8(end.stdout).unwrap();
        let end: jiff::Timestamp = end.trim().strip_prefix("notAfter=").unwrap().parse().unwrap();
        let end = Timestamp::from_millis(end.as_millisecond() as u64);
        let (server, port) = serve(&folder, 0);
        Self { folder, server, port, end }
    }

    /// Ends both servers, and serves the other's certificate at this one's port.
    fn swap(&mut self, other: Self) {
        self.end_server();
        (self.server, _) = serve(&other.folder, self.port);
    }

    fn end_server(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn openssl(folder: &tempfile::TempDir, arguments: &str) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Serves the certificate of a folder at a port, or at any with 0, and returns the port.
fn serve(folder: &tempfile::TempDir, port: u16) -> (Child, u16) {
    let mut server = openssl(folder, &format!("s_server -accept localhost:{port} -cert cert.pem -key key.pem -www"));
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let accepts = lines.find(|line| line.starts_with("ACCEPT")).unwrap();
    // It names the port that it has chosen, and no other.
    (server, accepts.rsplit(':').next().and_then(|chosen| chosen.parse().ok()).unwrap_or(port))
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.end_server();
    }
}

// Guarantee: health 8.
#[tokio::test]
async fn thirty_two_targets_at_most_are_asked_at_a_time() {
    let service = Service::start().await;
    let of = |tenant| Target::new(format!("{tenant}"), format!("http://{}/held", service.address)).text("healthy");
    let prober = (0..100).map(of).fold(service.prober(), Builder::<Prober>::target).build().unwrap();
    let round = prober.round().await;
    assert_eq!((round.outcome, round.targets.len()), (Outcome::Conclusive(Is::Healthy), 100));
    let most = service.most_at_once.load(SeqCst);
    assert!((2..=32).contains(&most), "{most}");
}

#[test]
fn impossible_settings_of_a_prober_are_refused_by_name() {
    let refused = |builder: Builder<Prober>| -> ConfigError { builder.build().unwrap_err() };
    let target = |name: &str, url: &str| Target::new(name, url).text("healthy");
    let known = |config| {
        let good = Prober::builder(config).known_good(target("good", "http://a.test"));
        good.known_bad(target("bad", "http://b.test"))
    };
    let with = |target| refused(known(ProberConfig::default()).target(target)).to_string();
    let one = || target("shop", "https://c.test");
    for (error, expected) in [
        (refused(known(ProberConfig::default())).to_string(), "target"),
        (refused(Prober::builder(ProberConfig::default()).target(one())).to_string(), "known_good"),
        (with(target("", "http://c.test")), "name"),
        (with(target("good", "http://c.test")), "`good` twice"),
        (with(target("shop", "ftp://c.test")), "shop"),
        (with(target("shop", "/readyz")), "`http` or `https`"),
        (with(one().status(1000)), "status from 200 to 599"),
        (with(one().text("")), "empty text"),
        (with(one().text("a".repeat(64 * 1024 + 1))), "more than 64 KiB"),
        (refused(known(ProberConfig::default().interval(MS(999))).target(one())).to_string(), "interval"),
        (refused(known(ProberConfig::default().timeout(MS(0))).target(one())).to_string(), "timeout"),
        (
            refused(known(ProberConfig::default().certificate_warning(S(60))).target(one())).to_string(),
            "certificate_failure",
        ),
    ] {
        assert!(error.contains(expected), "{error}: {expected}");
    }
}
