//! Rights, forged forms, and the headers of responses.
use http::{Request, StatusCode};
use http_body_util::Full;
use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    console::{Console, ConsoleConfig, ConsoleEvent, ConsoleRefusal},
};

use super::{OWN, S, act, builder, form, get, post, whole};

fn watched() -> (CircuitBreaker, Console) {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let console = builder().watch("payments", &breaker).build().unwrap();
    (breaker, console)
}

// Guarantee: console 1.
#[tokio::test(start_paused = true)]
async fn a_console_is_closed_unless_it_is_told_who_may_see_it() {
    let error = Console::builder(ConsoleConfig::default()).build().unwrap_err();
    assert_eq!(error.field(), "authorize");
    let (_, console) = watched();
    for target in ["/", "/state.json", "/?live", "/?component=payments"] {
        let stranger = whole(&console, Request::get(target).body(Full::default()).unwrap()).await;
        assert_eq!((stranger.status, stranger.text.as_str()), (StatusCode::FORBIDDEN, "no access"));
        assert_eq!(get(&console, "panic", target).await.status, StatusCode::FORBIDDEN);
    }
    let open = Console::builder(ConsoleConfig::default()).open().build().unwrap();
    assert_eq!(whole(&open, Request::get("/").body(Full::default()).unwrap()).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn settings_and_names_are_checked() {
    let config = ConsoleConfig::default;
    for (config, field) in [
        (config().refresh(S(0)), "refresh"),
        (config().engine_refresh(std::time::Duration::from_millis(999)), "engine_refresh"),
        (config().read_timeout(S(0)), "read_timeout"),
        (config().max_viewers(0), "max_viewers"),
    ] {
        assert_eq!(Console::builder(config).open().build().unwrap_err().field(), field);
    }
    let (breaker, _) = watched();
    assert!(builder().watch("", &breaker).build().is_err());
    assert!(builder().watch("a", &breaker).watch("a", &breaker).build().is_err());
}

// Guarantee: console 2.
#[tokio::test(start_paused = true)]
async fn a_user_who_may_read_cannot_act() {
    let (breaker, console) = watched();
    let page = get(&console, "ann", "/?component=payments").await;
    assert!(page.text.contains("You can read, and not act."));
    assert!(!page.text.contains("do=isolate"));
    // Nor by the form of an operator.
    let fields = form(&console, "olga", "payments", "", "isolate").await;
    assert!(get(&console, "ann", "/?component=payments&do=isolate").await.fields().is_empty());
    assert_eq!(post(&console, "ann", &OWN, &fields).await.status, StatusCode::FORBIDDEN);
    // Nor an operator by a form from before the right was taken away.
    let demoted = [OWN[0], OWN[1], ("x-demoted", "")];
    assert_eq!(post(&console, "olga", &demoted, &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: console 3.
#[tokio::test(start_paused = true)]
async fn a_forged_form_is_refused() {
    let (breaker, console) = watched();
    let mut events = console.events();
    let fields = form(&console, "olga", "payments", "", "isolate").await;
    let is_form = ("content-type", "application/x-www-form-urlencoded");
    let forged: [&[(&str, &str)]; 8] = [
        &[is_form],
        &[is_form, ("sec-fetch-site", "cross-site")],
        &[is_form, ("sec-fetch-site", "same-site")],
        &[is_form, ("sec-fetch-site", "none")],
        &[is_form, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
        &[is_form, ("sec-fetch-site", "cross-site"), ("origin", "https://shop.example")],
        &[is_form, ("origin", "https://evil.example")],
        &[is_form, ("origin", "null")],
    ];
    for headers in forged {
        assert_eq!(post(&console, "olga", headers, &fields).await.status, StatusCode::FORBIDDEN, "{headers:?}");
        let event = events.recv().await.unwrap().what;
        assert!(matches!(event, ConsoleEvent::Refused { reason: ConsoleRefusal::Forged, .. }), "{event:?}");
    }
    let with = |name: &str, value: &str| {
        let mut fields = fields.clone();
        fields.iter_mut().filter(|(field, _)| field == name).for_each(|(_, old)| *old = value.to_owned());
        fields
    };
    // A token that is none, of another user, of another console, and one that is too old.
    let other = form(&watched().1, "olga", "payments", "", "isolate").await;
    let reasons = [ConsoleRefusal::Stale, ConsoleRefusal::Stale, ConsoleRefusal::Stale];
    for (fields, expected) in [with("token", ""), with("token", "1.00"), other].iter().zip(reasons) {
        assert_eq!(post(&console, "olga", &OWN, fields).await.status, StatusCode::FORBIDDEN);
        match events.recv().await.unwrap().what {
            ConsoleEvent::Refused { user, component, action, reason } => {
                assert_eq!((&*user, &*component, &*action, reason), ("olga", "payments", "isolate", expected));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(post(&console, "otto", &OWN, &fields).await.status, StatusCode::FORBIDDEN);
    tokio::time::advance(S(3601)).await;
    assert_eq!(post(&console, "olga", &OWN, &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(breaker.state(), State::Closed);

    // The same form from the page itself, by a browser that sends either header.
    let fields = form(&console, "olga", "payments", "", "isolate").await;
    let origin = [is_form, ("origin", "http://shop.example")];
    assert_eq!(post(&console, "olga", &origin, &fields).await.status, StatusCode::SEE_OTHER);
    assert_eq!(breaker.state(), State::Isolated);
}

#[tokio::test(start_paused = true)]
async fn a_form_that_is_too_large_or_none_is_refused() {
    let (breaker, console) = watched();
    let mut fields = form(&console, "olga", "payments", "", "isolate").await;
    let typed = [OWN[0], ("content-type", "text/plain")];
    assert_eq!(post(&console, "olga", &typed, &fields).await.status, StatusCode::BAD_REQUEST);
    fields.push(("note".to_owned(), "x".repeat(16 << 10)));
    assert_eq!(post(&console, "olga", &OWN, &fields).await.status, StatusCode::BAD_REQUEST);
    let delete = Request::delete("/").header("x-user", "olga").body(Full::default()).unwrap();
    assert_eq!(whole(&console, delete).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn each_response_is_private_to_its_page() {
    let (_, console) = watched();
    for target in ["/", "/state.json", "/?component=payments", "/?component=none", "/?component=payments&do=isolate"] {
        let answer = get(&console, "olga", target).await;
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'; "), "{target}");
        assert!(answer.header("content-security-policy").ends_with("frame-ancestors 'none'"));
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        // With `no-referrer` a browser sends `Origin: null` with the forms of the page itself.
        assert_eq!(answer.header("referrer-policy"), "same-origin");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_rights_makes_no_event_and_one_of_a_reader_tells_what_it_was() {
    let (_, console) = watched();
    let mut events = console.events();
    let fields = form(&console, "olga", "payments", "", "isolate").await;
    let stranger = Request::post("/?component=payments&do=isolate").body(Full::default()).unwrap();
    assert_eq!(whole(&console, stranger).await.status, StatusCode::FORBIDDEN);
    assert!(matches!(events.try_recv(), Ok(None)));
    post(&console, "ann", &OWN, &fields).await;
    let expected = ConsoleEvent::Refused {
        user: "ann".to_owned(),
        component: "payments".to_owned(),
        action: "isolate".to_owned(),
        reason: ConsoleRefusal::Access,
    };
    assert_eq!(events.recv().await.unwrap().what, expected);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_another_site_opens_the_console_and_reads_nothing_else_of_it() {
    let (_, console) = watched();
    let from = async |site: &str, mode: &str| {
        let request = Request::get("/?component=payments").header("x-user", "olga").header("sec-fetch-site", site);
        whole(&console, request.header("sec-fetch-mode", mode).body(Full::default()).unwrap()).await.status
    };
    assert_eq!(from("cross-site", "no-cors").await, StatusCode::FORBIDDEN);
    assert_eq!(from("same-site", "cors").await, StatusCode::FORBIDDEN);
    assert_eq!(from("cross-site", "navigate").await, StatusCode::OK);
    assert_eq!(from("same-origin", "cors").await, StatusCode::OK);
    assert_eq!(from("none", "navigate").await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn an_open_console_answers_under_no_name_but_those_that_are_given() {
    let open = || Console::builder(ConsoleConfig::default()).open();
    let (plain, named) = (open().build().unwrap(), open().hosts(["console.example"]).build().unwrap());
    let asked = async |console: &Console, host: &str| {
        whole(console, Request::get("/").header("host", host).body(Full::default()).unwrap()).await.status
    };
    for host in ["localhost:8080", "127.0.0.1", "10.0.0.5:80", "[::1]:8080", "[fd00::1]"] {
        assert_eq!(asked(&plain, host).await, StatusCode::OK, "{host}");
        assert_eq!(asked(&named, host).await, StatusCode::OK, "{host}");
    }
    for host in ["evil.example", "10.0.0.5.evil.example", "localhost.evil.example:80", ""] {
        assert_eq!(asked(&plain, host).await, StatusCode::MISDIRECTED_REQUEST, "{host}");
        assert_eq!(asked(&named, host).await, StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    assert_eq!(asked(&plain, "console.example").await, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(asked(&named, "Console.example:8080").await, StatusCode::OK);
    // A console that checks each request answers under each name.
    let request = Request::get("/").header("x-user", "ann").header("host", "shop.example");
    assert_eq!(whole(&watched().1, request.body(Full::default()).unwrap()).await.status, StatusCode::OK);
}

// Guarantee: console 8.
#[tokio::test(start_paused = true)]
async fn each_action_is_an_event_with_its_operator_when_it_begins_and_when_it_ends() {
    let (_, console) = watched();
    let mut events = console.events();
    act(&console, "olga", ("payments", "", "isolate"), "").await;
    let began = ConsoleEvent::Began {
        user: "olga".to_owned(),
        component: "payments".to_owned(),
        action: "isolate".to_owned(),
        of: String::new(),
        note: String::new(),
    };
    assert_eq!(events.recv().await.unwrap().what, began);
    let event = events.recv().await.unwrap();
    let expected = ConsoleEvent::Acted {
        user: "olga".to_owned(),
        component: "payments".to_owned(),
        action: "isolate".to_owned(),
        of: String::new(),
        note: String::new(),
        result: Ok("The breaker is isolated.".to_owned()),
    };
    assert_eq!((event.source.unwrap().as_str(), event.what), ("shop", expected));
}
