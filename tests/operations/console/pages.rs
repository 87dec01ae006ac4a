//! What the pages show, and that text from outside stays text.
use base64::{Engine, engine::general_purpose::STANDARD};
use http::StatusCode;
use sha2::{Digest, Sha256};
use steadfast::{
    BoxedPipeline, Pipeline,
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    console::Calls,
    queue::{InMemoryQueue, Message, QueueExt},
    retry::{Retry, RetryConfig},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
};

use super::{
    FAILS, HANGS, Moody, OWN, PANICS, S, WELL, builder, bury, get, post, state,
    viewers::{live, update},
    within,
};
use crate::world::MS;

const HOSTILE: &str = "<script>alert('x')</script>\"&\u{202e}";

// Guarantee: console 4.
#[tokio::test(start_paused = true)]
async fn names_errors_headers_and_bodies_stay_text() {
    let queue = InMemoryQueue::new("q");
    queue.send_one(Message::new(HOSTILE).header(HOSTILE, HOSTILE).group(HOSTILE)).await.unwrap();
    let delivery = queue.receive_one(S(30)).await.unwrap().unwrap();
    queue.dead_letter(&delivery.receipt, HOSTILE).await.unwrap();
    let console = builder().queue(HOSTILE, queue).build().unwrap();
    let name = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let of = format!("letter%20{}", delivery.id);
    for target in [
        "/".to_owned(),
        format!("/?component={name}"),
        format!("/?component={name}&of=letters"),
        format!("/?component={name}&of={of}"),
        format!("/?component={name}&do=redrive"),
        format!("/?component={name}&of={of}&do=redrive"),
        format!("/?component={name}&of={name}"),
    ] {
        let page = get(&console, "olga<b>", &target).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.text.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\u{fffd}"), "{target}");
        assert_eq!(
            page.text.matches("<script").count(),
            page.text.matches("<script>\"use strict\"").count(),
            "{target}"
        );
        assert!(!page.text.contains("<b>"));
    }
    // Also the headline and the title that the script of an open page writes, as text.
    for target in ["/?live".to_owned(), format!("/?component={name}&live"), format!("/?component={name}&of={of}&live")]
    {
        let update = update(&mut live(&console, &target).await).await.unwrap();
        assert!(update.contains("alert('x')") && !update.contains('\u{202e}'), "{target}: {update}");
    }
    // An operator acts on a component of any name.
    let page = get(&console, "olga", &format!("/?component={name}&of={of}&do=redrive")).await;
    let answer = post(&console, "olga", &OWN, &page.fields()).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let told = get(&console, "olga", &format!("/{}", answer.header("location"))).await;
    assert!(told.text.contains("The dead letter was sent again."), "{}", told.text);
}

#[tokio::test(start_paused = true)]
async fn a_browser_runs_no_script_but_that_of_the_page() {
    let console = builder().build().unwrap();
    let page = get(&console, "ann", "/").await;
    let policy = page.header("content-security-policy");
    for (tag, directive) in [("style", "style-src"), ("script", "script-src")] {
        let content = page.text.split(&format!("<{tag}>")).nth(1).unwrap().split(&format!("</{tag}>")).next().unwrap();
        let hash = STANDARD.encode(Sha256::digest(content));
        assert!(policy.contains(&format!("{directive} 'sha256-{hash}';")), "{policy}");
    }
    // No attribute that the policy would refuse.
    assert!(!page.text.contains(" style=") && !page.text.contains(" onclick="));
}

// Guarantee: console 7.
#[tokio::test(start_paused = true)]
async fn a_read_out_that_hangs_fails_or_panics_is_one_red_box() {
    let queue = Moody::new();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let console = builder().queue("away", queue.clone()).watch("well", &breaker).build().unwrap();
    for (mood, why) in [
        (HANGS, "no answer within 2s"),
        (PANICS, "the read-out panicked: &lt;b&gt;planted&lt;/b&gt;"),
        (FAILS, "no route"),
    ] {
        queue.is(mood);
        let page = get(&console, "ann", "/").await.text;
        assert!(page.contains(why), "{page}");
        assert!(page.contains("away is away") && page.contains(">closed<"));
        assert_eq!(page.matches("<li class=\"card wrong\">").count(), 1);
        // After ten times what it took.
        tokio::time::advance(S(20)).await;
    }
    queue.is(WELL);
    let page = get(&console, "ann", "/").await.text;
    assert!(page.contains("None of 2 components reports trouble"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_comes_first_in_the_order_of_its_kind() {
    let queue = InMemoryQueue::new("q");
    bury(&queue, "one", "no address").await;
    let (breaker, limit) = (
        CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap(),
        ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap(),
    );
    let well = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let console = builder()
        .watch("search", &well)
        .queue("deliveries", queue)
        .watch("slots", &limit)
        .watch("payments", &breaker)
        .build()
        .unwrap();
    let _permit = limit.try_acquire().unwrap();
    breaker.isolate();
    tokio::time::advance(S(90)).await;
    let page = get(&console, "ann", "/").await.text;
    assert!(page.contains(">3 of 4 components need attention</h1>"), "{page}");
    assert!(page.contains("<title>(3) shop</title>"));
    let list = page.split("<ol class=\"troubles\">").nth(1).unwrap().split("</ol>").next().unwrap();
    let at = |text: &str| list.find(text).unwrap_or_else(|| panic!("{text}: {list}"));
    assert!(at("payments") < at("for 90 s"));
    assert!(at("for 90 s") < at("isolated manually"));
    assert!(at("isolated manually") < at("all 1 permit in use"));
    assert!(at("all 1 permit in use") < at("1 dead letter; the oldest: no address"));
    assert!(!list.contains("search"));
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_says_which_rule_opened_it_and_when_it_probes() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default().count_window(10, 2)).unwrap();
    let console = builder().watch("payments", &breaker).build().unwrap();
    for _ in 0..2 {
        breaker.call(async || Err::<(), _>("refused")).await.unwrap_err();
    }
    let why = state(&console).await["components"][0]["why"].as_str().unwrap().to_owned();
    assert!(why.starts_with("rejected by the circuit breaker: open (failure rate; last failure: "), "{why}");
    assert!(why.contains("; probes in "), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_is_drawn_as_its_layers_with_warnings() {
    let retry = Retry::builder(RetryConfig::default()).name("again").build().unwrap();
    let pipeline = Pipeline::new().then(retry);
    let boxed: BoxedPipeline<(), &str> = pipeline.clone().boxed();
    let console = builder().watch("calls", &pipeline).watch("boxed", &boxed).build().unwrap();
    for name in ["calls", "boxed"] {
        let page = get(&console, "ann", &format!("/?component={name}")).await.text;
        assert!(page.contains("Layers, outermost first") && page.contains("<td>again</td>"), "{page}");
        assert!(page.contains("has neither a budget nor a circuit breaker inside it"), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_shows_its_share_of_hits() {
    let cache: CacheAside<String, u32> = CacheAside::new(CacheAsideConfig::default()).unwrap();
    for _ in 0..4 {
        let load = async || Ok::<_, std::io::Error>(7);
        cache.get_or_load(&"a".to_owned(), load).await.unwrap();
    }
    let console = builder().watch("prices", &cache).build().unwrap();
    let shown = state(&console).await;
    assert_eq!(shown["components"][0]["facts"][0], serde_json::json!(["hits, %", "75"]));
}

#[tokio::test(start_paused = true)]
async fn a_body_is_cut_shown_as_digits_or_hidden() {
    let queue = InMemoryQueue::new("q");
    let large = "x".repeat(1 << 20);
    let euros = "\u{20ac}".repeat(2000);
    for body in [large.as_bytes(), euros.as_bytes(), &[0xff, 0, 0x7f]] {
        bury(&queue, body.to_vec(), "no address").await;
    }
    let console = builder().queue("q", queue.clone()).build().unwrap();
    let letters = get(&console, "ann", "/?component=q&of=letters").await.text;
    let mut shown = Vec::new();
    for of in letters.split("href=\"?component=q&amp;of=letter%20").skip(1) {
        let of = of.split('"').next().unwrap();
        shown.push((of, get(&console, "ann", &format!("/?component=q&of=letter%20{of}")).await.text));
    }
    let size = |page: &str| page.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap().len();
    assert_eq!(size(&shown[0].1), 4096);
    assert!(shown[0].1.contains("1048576 bytes, as text; the last 1044480 are not shown"));
    // It is cut at the end of a character.
    assert_eq!(size(&shown[1].1), 4095);
    assert!(shown[2].1.contains("<pre>ff 00 7f</pre>") && shown[2].1.contains("3 bytes, as hexadecimal"));

    let hiding = builder().queue("q", queue).hide_bodies().build().unwrap();
    for (of, _) in shown {
        for target in ["/", "/state.json"] {
            let page = get(&hiding, "olga", &format!("{target}?component=q&of=letter%20{of}")).await.text;
            assert!(!page.contains("<pre>") && !page.contains("ff 00 7f") && !page.contains("xxxx"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_for_scripts_is_that_of_the_page() {
    let queue = InMemoryQueue::new("q");
    bury(&queue, "one", "no address").await;
    let console = builder().queue("deliveries", queue).build().unwrap();
    let shown = state(&console).await;
    assert_eq!((&shown["version"], &shown["name"]), (&1.into(), &"shop".into()));
    let component = &shown["components"][0];
    let page = get(&console, "ann", "/?component=deliveries").await.text;
    for field in ["state", "why"] {
        assert!(page.contains(component[field].as_str().unwrap()), "{field}: {page}");
    }
    for fact in component["facts"].as_array().unwrap() {
        let line = format!("<dt>{}</dt><dd>{}</dd>", fact[0].as_str().unwrap(), fact[1].as_str().unwrap());
        assert!(page.contains(&line), "{line}");
    }
    assert_eq!(get(&console, "ann", "/state.json?component=none").await.status, StatusCode::NOT_FOUND);
    let one = get(&console, "ann", "/a/b/state.json?component=deliveries&of=letters").await;
    assert_eq!(one.header("content-type"), "application/json");
    assert!(one.text.contains("no address"));
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_and_timed_over_fifteen_minutes() {
    let clock = Clock::tokio();
    let seen = Calls::new(&clock);
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let pipeline = Pipeline::new().then(seen.clone()).then(breaker.clone());
    let console = builder().watch("seen", &seen).build().unwrap();
    let call = async |took, result: Result<(), &'static str>| {
        let operation = || {
            let (pause, result) = (clock.sleep(took), result);
            async move {
                pause.await;
                result
            }
        };
        pipeline.call(operation).await
    };
    for _ in 0..97 {
        call(MS(10), Ok(())).await.unwrap();
    }
    call(S(1), Ok(())).await.unwrap();
    call(S(1), Err("no")).await.unwrap_err();
    breaker.isolate();
    call(S(1), Ok(())).await.unwrap_err();
    let dropped = within(MS(1), pipeline.call(async || std::future::pending::<Result<(), &str>>().await));
    breaker.close();
    assert!(dropped.await.is_none());

    let shown = state(&console).await;
    let facts = &shown["components"][0]["facts"];
    let fact = |label: &str| facts.as_array().unwrap().iter().find(|fact| fact[0] == label).unwrap()[1].clone();
    assert_eq!((fact("calls, 15 min"), fact("failed, %"), fact("refused, %")), ("100".into(), "1".into(), "1".into()));
    assert_eq!((fact("median"), fact("99th percentile")), ("10.24ms".into(), "1.048576s".into()));
    assert_eq!(fact("cancelled"), "1");
    let rows = &shown["components"][0]["tables"][0]["rows"];
    assert_eq!(rows[0]["cells"], serde_json::json!(["failed: other", "1"]));
    assert_eq!(rows[1]["cells"], serde_json::json!(["refused by the circuit breaker: isolated", "1"]));

    tokio::time::advance(S(60)).await;
    let shown = state(&console).await;
    let lines = &shown["components"][0]["lines"];
    assert_eq!(lines[0][1].as_array().unwrap().iter().filter_map(|n| n.as_f64()).sum::<f64>(), 100.0);
    tokio::time::advance(S(900)).await;
    assert_eq!(state(&console).await["components"][0]["facts"][0][1], "0");
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_oldest_message_waits_for_long_is_behind() {
    let (queue, clock) = (InMemoryQueue::new("q"), Clock::tokio());
    queue.send_one(Message::new("one")).await.unwrap();
    let console = builder().queue("q", queue.clone()).build().unwrap();
    clock.sleep(S(899)).await;
    assert_eq!(state(&console).await["components"][0]["state"], "running");
    clock.sleep(S(6)).await;
    let shown = state(&console).await;
    assert_eq!(shown["components"][0]["trouble"], "behind");
    assert_eq!(shown["components"][0]["why"], "the oldest message waits for 15 min");
    // One that a handler has does not wait.
    queue.receive_one(S(60)).await.unwrap();
    clock.sleep(S(6)).await;
    assert_eq!(state(&console).await["components"][0]["state"], "running");
}
