//! Settings that operators edit: the difference first, then the change.
use std::sync::Arc;

use http::StatusCode;
use steadfast::{
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig},
    codec::Codec,
    console::{Console, ConsoleEvent},
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    lease::StoreLease,
    queue::InMemoryQueue,
    queue_listener::{QueueListener, QueueListenerConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Plan, Saga, SagaConfig, Step, StepOutcome},
    standard::{Standard, StandardConfig},
    store::InMemoryStore,
    stream::{StoreTopic, StreamProcessor, StreamProcessorConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Gauge, KeyedRateLimitConfig, KeyedRateLimiter, RateLimitConfig, RateLimiter, Shedder,
        ShedderConfig,
    },
    timeout::Timeout,
};

use super::{Answer, OWN, S, builder, form, get, post, state};

type Form = Vec<(String, String)>;

/// Returns the text of the page's field.
fn text(answer: &Answer) -> String {
    let field = answer.text.split("<textarea ").nth(1).unwrap_or_else(|| panic!("{}", answer.text));
    let text = field.split_once('>').unwrap().1.split("</textarea>").next().unwrap();
    let text = text.replace("&quot;", "\"").replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">");
    text.replace("&amp;", "&")
}

fn with(mut form: Form, text: &str) -> Form {
    form.retain(|(name, _)| name != "note");
    // As a browser sends it.
    form.push(("note".to_owned(), text.replace('\n', "\r\n")));
    form
}

fn watched() -> (ConcurrencyLimiter, Console) {
    let limit = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(16)).unwrap();
    let console = builder().watch("slots", &limit).build().unwrap();
    (limit, console)
}

#[tokio::test(start_paused = true)]
async fn settings_are_edited_as_toml_and_the_difference_is_shown_before_they_change() {
    let (limit, console) = watched();
    let mut events = console.events();
    let page = get(&console, "olga", "/?component=slots&do=settings").await;
    let old = text(&page);
    assert!(old.contains("capacity = 16\n"), "{old}");
    let review = post(&console, "olga", &OWN, &with(page.fields(), &old.replace("= 16", "= 24"))).await;
    assert_eq!(review.status, StatusCode::OK, "{}", review.text);
    assert!(review.text.contains("Changes 1 setting of this process."), "{}", review.text);
    assert!(review.text.contains("<th scope=\"row\">capacity</th><td>16</td><td>24</td>"), "{}", review.text);
    // Nothing has changed yet, and nothing is an action.
    assert_eq!(limit.capacity(), 16);
    assert!(matches!(events.try_recv(), Ok(None)));

    let applied = post(&console, "olga", &OWN, &review.fields()).await;
    assert_eq!(applied.status, StatusCode::SEE_OTHER, "{}", applied.text);
    assert_eq!(limit.capacity(), 24);
    let told = get(&console, "olga", &format!("/{}", applied.header("location"))).await;
    assert!(told.text.contains("Settings changed: capacity from 16 to 24."), "{}", told.text);
    let ConsoleEvent::Began { action, note, .. } = events.recv().await.unwrap().what else { panic!() };
    assert_eq!((action.as_str(), note.as_str()), ("settings", "capacity from 16 to 24"));
    // Sent again, it gets the same answer.
    assert_eq!(post(&console, "olga", &OWN, &review.fields()).await.header("location"), applied.header("location"));
}

#[tokio::test(start_paused = true)]
async fn settings_that_are_not_valid_are_told_with_their_rule_and_change_nothing() {
    let (limit, console) = watched();
    let edit = async || get(&console, "olga", "/?component=slots&do=settings").await;
    for (wrong, why) in [
        ("capacity = 0", "Nothing was done: invalid `capacity`: "),
        ("capacity = \"many\"", "Nothing was done: `capacity`: invalid type: string &quot;many&quot;"),
        ("capacity = 16\ncapacty = 16", "unknown field `capacty`"),
        ("# <b>\ncapacity 16", "Nothing was done: line 2: key with no value, expected `=`"),
    ] {
        let review = post(&console, "olga", &OWN, &with(edit().await.fields(), wrong)).await;
        assert_eq!(review.status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
        assert!(review.text.contains(why), "{}", review.text);
        assert!(!review.text.contains("<b>"));
        // The operator goes on with the same text.
        assert_eq!(text(&review), wrong);
        // A form that leaves out the review is checked, too.
        let direct: Form =
            review.fields().into_iter().map(|(name, value)| (name, value.replace("&review", ""))).collect();
        let answer = post(&console, "olga", &OWN, &with(direct, wrong)).await;
        let told = get(&console, "olga", &format!("/{}", answer.header("location"))).await;
        assert!(told.text.contains("The action failed: "), "{}", told.text);
    }
    let page = edit().await;
    let same = post(&console, "olga", &OWN, &with(page.fields(), &text(&page))).await;
    assert!(same.text.contains("These are the settings in effect."), "{}", same.text);
    assert_eq!(limit.capacity(), 16);
}

#[tokio::test(start_paused = true)]
async fn settings_that_were_changed_meanwhile_are_a_conflict() {
    let (limit, console) = watched();
    let page = get(&console, "olga", "/?component=slots&do=settings").await;
    let fields = with(page.fields(), &text(&page).replace("= 16", "= 24"));
    let review = post(&console, "olga", &OWN, &fields).await;
    limit.reconfigure(ConcurrencyLimitConfig::of(20)).unwrap();
    for form in [fields, review.fields()] {
        let answer = post(&console, "olga", &OWN, &form).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
        assert!(answer.text.contains("Nothing was done: the state has changed since the page was made"));
    }
    assert_eq!(limit.capacity(), 20);
}

#[tokio::test(start_paused = true)]
async fn who_may_read_sees_settings_and_changes_none() {
    let (limit, console) = watched();
    let page = get(&console, "ann", "/?component=slots").await.text;
    assert!(page.contains("<summary>Settings</summary>") && !page.contains("do=settings"), "{page}");
    assert!(!get(&console, "ann", "/?component=slots&do=settings").await.text.contains("<textarea"));
    let fields = with(form(&console, "olga", "slots", "", "settings").await, "capacity = 24");
    assert_eq!(post(&console, "ann", &OWN, &fields).await.status, StatusCode::FORBIDDEN);
    let evil = [OWN[1], ("origin", "https://evil.example")];
    assert_eq!(post(&console, "olga", &evil, &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(limit.capacity(), 16);
}

/// Returns a console with a component of each kind whose settings can change in use.
async fn all_kinds() -> Console {
    let store = Arc::new(InMemoryStore::new());
    let codec = || Codec::new(|n: &u8| Ok::<_, String>(vec![*n]), |bytes| Ok::<_, String>(bytes[0]));
    let plan = Plan::<u8>::new().step_without_compensation("seat", |_: Step<u8>| async { StepOutcome::completed() });
    let topic = StoreTopic::open(store.clone(), "audit", 2).await.unwrap();
    let leases = Arc::new(StoreLease::new(store.clone()).unwrap());
    let shed: ShedderConfig = toml::from_str("limits = { \"a b\" = { soft = 0.7, hard = 0.9 } }").unwrap();
    let tiers: KeyedRateLimitConfig = toml::from_str("tiers = [{ permits = 7, per = \"1s\" }]").unwrap();
    let all = "rate_limit = {}\nconcurrency_limit = {}\nhedge = {}\nclient_throttle = {}\ncircuit_breaker = {}";
    let standard: StandardConfig = toml::from_str(all).unwrap();
    builder()
        .watch("breaker", &CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap())
        .watch("breakers", &KeyedBreakers::<String>::new(KeyedBreakersConfig::default()).unwrap())
        .watch("retry", &Retry::new(RetryConfig::default()).unwrap())
        .watch("budget", &RetryBudget::new(RetryBudgetConfig::default()).unwrap())
        .watch("timeout", &Timeout::new(S(3)))
        .watch("hedge", &Hedge::new(HedgeConfig::default()).unwrap())
        .watch("fallback", &Fallback::new(FallbackConfig::default()).unwrap())
        .watch("rate", &RateLimiter::new(RateLimitConfig::default()).unwrap())
        .watch("tenants", &KeyedRateLimiter::<u32>::new(tiers).unwrap())
        .watch("slots", &ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(3)).unwrap())
        .watch("adaptive", &AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap())
        .watch("shedder", &Shedder::builder(shed).gauge("a b", Gauge::new()).build().unwrap())
        .watch("throttle", &ClientThrottle::new(ClientThrottleConfig::default()).unwrap())
        .watch("cache", &CacheAside::<u8, u8>::new(CacheAsideConfig::default()).unwrap())
        .watch("stack", &Standard::new(standard).unwrap())
        .watch("saga", &Saga::new("trip", store.clone(), codec(), plan, SagaConfig::default()).unwrap())
        .watch(
            "listener",
            &QueueListener::new(Arc::new(InMemoryQueue::new("q")), QueueListenerConfig::default()).unwrap(),
        )
        .watch(
            "stream",
            &StreamProcessor::new(topic, "billing", leases, store, StreamProcessorConfig::default()).unwrap(),
        )
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_component_reads_the_settings_that_its_page_writes() {
    let console = all_kinds().await;
    let shown = state(&console).await;
    let components = shown["components"].as_array().unwrap();
    assert_eq!(components.len(), 18);
    for component in components {
        let name = component["name"].as_str().unwrap();
        let page = get(&console, "olga", &format!("/?component={name}&do=settings")).await;
        let old = text(&page);
        let same = post(&console, "olga", &OWN, &with(page.fields(), &old)).await;
        assert!(same.text.contains("These are the settings in effect."), "{name}: {old}\n{}", same.text);
        // Other readers of TOML read it, too.
        toml::from_str::<toml::Table>(&old).unwrap_or_else(|error| panic!("{name}: {old}\n{error}"));
        let wrong = post(&console, "olga", &OWN, &with(page.fields(), &format!("{old}unknown_setting = 1"))).await;
        assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_setting_that_is_fixed_in_use_is_refused_with_its_name() {
    let console = all_kinds().await;
    let page = get(&console, "olga", "/?component=listener&do=settings").await;
    let old = text(&page);
    let line = old.lines().find(|line| line.starts_with("visibility = ")).unwrap();
    let review = post(&console, "olga", &OWN, &with(page.fields(), &old.replace(line, "visibility = \"7m\""))).await;
    assert_eq!(review.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(review.text.contains("Nothing was done: invalid `visibility`: "), "{}", review.text);
}

#[tokio::test(start_paused = true)]
async fn a_stack_has_the_settings_of_its_parts_and_they_have_none() {
    let config: StandardConfig = toml::from_str("retry = { max_attempts = 3 }").unwrap();
    let stack = Standard::new(config).unwrap();
    let console = builder().watch("bank", &stack).build().unwrap();
    let shown = state(&console).await;
    let rows = shown["components"][0]["tables"][0]["rows"].as_array().unwrap();
    let retry = rows.iter().find_map(|row| row["of"].as_str().filter(|of| of.ends_with("retry"))).unwrap();
    let part = get(&console, "olga", &format!("/?component=bank&of={}", retry.replace(' ', "%20"))).await.text;
    assert!(part.contains("retries, 15 min") && !part.contains("do=settings"), "{part}");
    let page = get(&console, "olga", "/?component=bank&do=settings").await;
    let next = text(&page).replace("retry.max_attempts = 3", "retry.max_attempts = 4");
    let review = post(&console, "olga", &OWN, &with(page.fields(), &next)).await;
    assert!(review.text.contains("<th scope=\"row\">retry.max_attempts</th><td>3</td><td>4</td>"), "{}", review.text);
    post(&console, "olga", &OWN, &review.fields()).await;
    assert_eq!(stack.retry().unwrap().config().max_attempts, 4);
}
