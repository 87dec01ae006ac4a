//! The console in a real browser: changes while it is open, repairs by mouse and by keyboard, texts from outside that try to
//! become markup, dark and narrow screens, and pages without a script.
use std::{fs, net::SocketAddr, path::Path, sync::atomic::Ordering::SeqCst, time::Duration};

use axum::{Router, response::Html, routing::get};
use http::StatusCode;
use serde_json::{Value, json};
use steadfast::{
    circuit_breaker::State,
    queue::{Message, QueueExt},
    saga::SagaPhase,
    time::Clock,
};
use tokio::net::TcpListener;

use super::{
    Order, Result, Shop,
    devtools::Browser,
    say,
    script::{ensure, until},
};

const S: fn(u64) -> Duration = Duration::from_secs;
/// Time within which a change of the service is on an open page.
const SOON: Duration = Duration::from_secs(2);

/// A name that tries to be markup, and to turn the text around it.
pub(crate) const HOSTILE: &str = "<script>alert('n')</script>\"'><img src=x onerror=\"alert('n')\">\u{202e}gnp.exe";
/// The same as a page shows it: the mark that turns text is replaced.
fn shown() -> String {
    HOSTILE.replace('\u{202e}', "\u{fffd}")
}

/// Opens pages and acts, as operators do. Pictures of the pages are written into `shots`.
pub(crate) async fn play(shop: &Shop, address: SocketAddr, program: &Path, shots: Option<&Path>) -> Result<()> {
    let mut browser = Browser::start(program).await?;
    browser.screen(1200, 900, "light").await?;
    finds_markup(&mut browser).await?;

    let home = format!("http://{address}/console");
    browser.open(&home).await?;
    browser.until("nothing is wrong", S(10), "document.querySelector('h1').textContent.startsWith('None of')").await?;
    browser.until("the page is live", S(10), "document.querySelector('#pulse').textContent === 'Live'").await?;
    browser.eval("window.stayed = true").await?;

    // A page that is open sees the breaker open, and close.
    shop.bank_is_away.store(true, SeqCst);
    until("the breaker opens", S(10), async || Ok(shop.breaker.state() == State::Open)).await?;
    let opened = "document.querySelector('main').innerText.includes('rejected by the circuit breaker')";
    let open = browser.until("the open breaker is shown", SOON, opened).await?;
    shop.bank_is_away.store(false, SeqCst);
    shop.breaker.reset();
    let closed = browser.until("the closed breaker is shown", SOON, &format!("!{opened}")).await?;
    ensure(browser.eval("window.stayed").await? == true, "the page was loaded again")?;
    let (open, closed) = (open.as_millis(), closed.as_millis());
    say(format!("the breaker was open on the page {open} ms after it opened, and closed {closed} ms after it closed"))?;

    // Orders are stuck, and deliveries of any content are dead letters.
    shop.mail_is_away.store(true, SeqCst);
    shop.order_and_deliver(4).await?;
    let orders = shop.orders.clone();
    tokio::spawn(async move { orders.run(HOSTILE, Order { account: 7, charged: false }).await });
    let hostile = Message::new(format!("no address: {HOSTILE}")).header(HOSTILE, HOSTILE).group("a");
    shop.deliveries.send_one(hostile).await?;
    shop.deliveries.send_one(Message::new(format!("no address: {}", "x".repeat(1 << 20)))).await?;
    until("all orders are stuck", S(30), async || {
        Ok(shop.orders.list_open().await?.iter().filter(|(_, is_stuck)| *is_stuck).count() == 5)
    })
    .await?;
    let dead = shop.deliveries.dead_letters().ok_or("the queue has no dead letters")?;
    until("all letters are dead", S(20), async || Ok(dead.depth().await?.total() == 3)).await?;
    shop.bank_is_away.store(true, SeqCst);

    let mut letters = dead.peek(3).await?;
    letters.sort_by_key(|letter| letter.body.len());
    let letter = |at: usize| format!("?component=deliveries&of=letter%20{}", letters[at].id);
    let pages = [
        ("first", String::new(), shown()),
        ("breaker", "?component=bank".to_owned(), "Isolate".to_owned()),
        ("pipeline", "?component=bank%20pipeline".to_owned(), "retries, 15 min".to_owned()),
        ("layer", "?component=bank%20pipeline&of=3.%20retry".to_owned(), "gave up".to_owned()),
        ("settings", "?component=bank&do=settings".to_owned(), "Settings, as TOML".to_owned()),
        ("name", format!("?component={}", encoded(HOSTILE)), shown()),
        ("queue", "?component=deliveries".to_owned(), "Redrive 3 dead letters".to_owned()),
        ("letters", "?component=deliveries&of=letters".to_owned(), "the customer <b>has no address</b>".to_owned()),
        ("letter", letter(1), format!("no address: {}", shown())),
        ("large_letter", letter(2), "the last 1044492 are not shown".to_owned()),
        ("orders", "?component=orders".to_owned(), shown()),
        ("order", format!("?component=orders&of={}", encoded(HOSTILE)), shown()),
        ("confirmation", format!("?component=orders&of={}&do=skip", encoded(HOSTILE)), shown()),
        ("election", "?component=nightly".to_owned(), "token".to_owned()),
    ];
    // Each page on each screen: its texts are text, and its faults none.
    let mut seen = 0;
    for (screen, width, height, scheme) in [
        ("light", 1200, 900, "light"),
        ("dark", 1200, 900, "dark"),
        ("narrow", 360, 740, "light"),
        ("narrow_dark", 360, 740, "dark"),
    ] {
        browser.screen(width, height, scheme).await?;
        for (name, target, text) in &pages {
            browser.open(&format!("{home}{target}")).await?;
            let wanted = format!("document.body.textContent.includes({})", json!(text));
            browser.until(&format!("{name} shows {text}"), S(10), &wanted).await?;
            let markup = markup(&mut browser).await?;
            ensure(markup == json!([]), &format!("{name}, {screen}: text became markup: {markup}"))?;
            let faults = browser.eval(include_str!("faults.js")).await?;
            ensure(faults == json!([]), &format!("{name}, {screen}: {faults}"))?;
            let dark = "getComputedStyle(document.body).backgroundColor === 'rgb(19, 21, 23)'";
            ensure(browser.eval(dark).await? == (scheme == "dark"), &format!("{name} is not {scheme}"))?;
            if let Some(folder) = shots {
                fs::create_dir_all(folder)?;
                browser.shoot(&folder.join(format!("{name}_{screen}.png"))).await?;
            }
            seen += 1;
        }
    }
    say(format!("{seen} pages show texts from outside as text, and have no fault on their screens"))?;

    // A repair by mouse: from the first page to the stuck order, and to its retry.
    browser.screen(1200, 900, "light").await?;
    shop.bank_is_away.store(false, SeqCst);
    shop.mail_is_away.store(false, SeqCst);
    shop.breaker.reset();
    browser.open(&home).await?;
    for text in ["orders", &shown(), "Retry …", "Retry"] {
        follow(&mut browser, text).await?;
    }
    browser
        .until("the order is completed", S(10), "document.body.textContent.includes('The saga is completed.')")
        .await?;
    let order = shop.orders.read(HOSTILE).await?.ok_or("the order is gone")?;
    ensure(order.phase == SagaPhase::Completed, "the page says that an order is completed, which is not")?;
    say("a stuck order was retried by four clicks, and is completed")?;

    // A setting, by its difference.
    browser.open(&format!("{home}?component=bank")).await?;
    follow(&mut browser, "Change settings …").await?;
    let edit = "(() => { const field = document.querySelector('textarea'); \
        field.value = field.value.replace('min_calls = 5', 'min_calls = 6'); return field.value.includes('min_calls = 6'); })()";
    ensure(browser.eval(edit).await? == true, "the setting is not in the field")?;
    follow(&mut browser, "Show the difference").await?;
    let shown = "document.querySelector('tbody').innerText";
    ensure(browser.eval(shown).await? == "min_calls\t5\t6", "the difference is not shown")?;
    let faults = browser.eval(include_str!("faults.js")).await?;
    ensure(faults == json!([]), &format!("difference: {faults}"))?;
    if let Some(folder) = shots {
        browser.shoot(&folder.join("difference_light.png")).await?;
    }
    ensure(shop.breaker.config().min_calls == 5, "the setting changed before it was confirmed")?;
    follow(&mut browser, "Change settings").await?;
    let told = "document.body.textContent.includes('Settings changed: min_calls from 5 to 6.')";
    browser.until("the change is told", S(10), told).await?;
    ensure(shop.breaker.config().min_calls == 6, "the page says that a setting changed, which did not")?;
    say("a setting was changed by its difference")?;

    // A repair by keyboard.
    browser.open(&format!("{home}?component=deliveries")).await?;
    for text in ["Redrive 3 dead letters …", "Redrive 3 dead letters"] {
        browser.until(text, S(10), &format!("!!{}", control(text))).await?;
        let mut presses = 0;
        while browser.eval(&format!("document.activeElement === {}", control(text))).await? != true {
            presses += 1;
            ensure(presses < 60, "a control has no focus, however often Tab is pressed")?;
            browser.press("Tab").await?;
        }
        browser.press("Enter").await?;
    }
    browser
        .until("all letters were sent again", S(10), "document.body.textContent.includes('3 dead letters sent again.')")
        .await?;
    say("dead letters were sent again by keyboard")?;

    // Without a script the page loads itself again, and the actions are the same.
    browser.forbid_scripts().await?;
    browser.open(&home).await?;
    shop.bank_is_away.store(true, SeqCst);
    until("the breaker opens", S(10), async || Ok(shop.breaker.state() == State::Open)).await?;
    let reloaded = browser.until("the open breaker is shown", S(8), opened).await?;
    ensure(browser.eval("document.querySelector('#pulse').textContent").await? != "Live", "a script runs")?;
    shop.bank_is_away.store(false, SeqCst);
    for text in ["bank", "Reset …", "Reset"] {
        follow(&mut browser, text).await?;
    }
    browser.until("the breaker is reset", S(10), "document.querySelector('h1').textContent === 'bank: closed'").await?;
    ensure(shop.breaker.state() == State::Closed, "the page says that the breaker is closed, which is not")?;
    say(format!("without a script the page showed the open breaker after {} ms, and reset it", reloaded.as_millis()))?;

    ensure(browser.dialogs.is_empty(), &format!("scripts from outside ran: {:?}", browser.dialogs))?;
    ensure(browser.errors.is_empty(), &format!("pages had errors: {:?}", browser.errors))?;
    let summary = json!({ "pages": seen, "shown_open_after_ms": open, "shown_closed_after_ms": closed, "dialogs": 0, "errors": 0 });
    Ok(say(summary.to_string())?)
}

/// Writes the pictures of the docs: the first page of a broken shop, light, dark and on a telephone.
pub(crate) async fn picture(shop: &Shop, address: SocketAddr, program: &Path, folder: &Path) -> Result<()> {
    let mut browser = Browser::start(program).await?;
    shop.fail().await?;
    until("the breaker opens", S(30), async || Ok(shop.breaker.state() == State::Open)).await?;
    Clock::tokio().sleep(S(3)).await;
    for (name, width, height, scheme) in [
        ("console.png", 1100, 760, "light"),
        ("console-dark.png", 1100, 760, "dark"),
        ("console-narrow.png", 375, 1000, "light"),
    ] {
        browser.screen(width, height, scheme).await?;
        browser.open(&format!("http://{address}/console")).await?;
        browser.until("the page is live", S(10), "document.querySelector('#pulse').textContent === 'Live'").await?;
        browser.shoot_part(&folder.join(name), width, height).await?;
    }
    Ok(say("console.png, console-dark.png, console-narrow.png")?)
}

/// Returns what text from outside has become: elements and handlers that no page of the console has.
async fn markup(browser: &mut Browser) -> Result<Value> {
    let found = "[...document.querySelectorAll('img, b, iframe, object, embed, link, base, [onerror], [onclick], [style]')] \
        .concat([...document.scripts].filter((script) => script.src || script.textContent.includes('alert'))) \
        .map((element) => element.outerHTML).concat(/[\u{202a}-\u{202e}\u{2066}-\u{2069}]/u.test(document.body.textContent) ? ['turned'] : [])";
    browser.eval(found).await
}

/// Looks at a page that escapes nothing: else it would prove nothing that no page of the console has markup.
async fn finds_markup(browser: &mut Browser) -> Result<()> {
    let careless = format!("<!doctype html><title>careless</title><p style='color: #aaa; width: 2000px'>{HOSTILE}</p>");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    // Its picture is none, and so is the icon for which the browser asks.
    let app: Router =
        Router::new().route("/", get(async move || Html(careless))).fallback(async || StatusCode::NO_CONTENT);
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    browser.open(&url).await?;
    let found = markup(browser).await?.as_array().map_or(0, Vec::len);
    let faults = browser.eval(include_str!("faults.js")).await?.to_string();
    server.abort();
    let dialogs = std::mem::take(&mut browser.dialogs).len();
    browser.errors.clear();
    ensure(
        found == 4 && dialogs == 2,
        &format!("of a careless page {found} elements and {dialogs} dialogs were seen"),
    )?;
    let is_found = faults.contains("has a contrast of 2.32") && faults.contains("pixels wide, and has room for 1200");
    ensure(is_found, &format!("of a careless page these faults were seen: {faults}"))?;
    Ok(say("a page that escapes nothing was found out: 4 pieces of markup, 2 dialogs")?)
}

/// Returns an expression of the link or button with this text.
fn control(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('a, button')].findLast((control) => control.textContent === {})",
        json!(text)
    )
}

/// Clicks the link or button with this text, once it is there, and waits for the next page.
async fn follow(browser: &mut Browser, text: &str) -> Result<()> {
    browser.until(text, S(10), &format!("document.readyState === 'complete' && !!{}", control(text))).await?;
    let page = "performance.timeOrigin";
    let before = browser.eval(page).await?;
    browser.click(&control(text)).await?;
    browser.until(&format!("the page after {text}"), S(10), &format!("{page} !== {before}")).await?;
    Ok(())
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
