//! The script: viewers, operators, and a forger, by requests of HTTP.
use std::{net::SocketAddr, pin::pin, sync::atomic::Ordering::SeqCst, time::Duration};

use futures::future::{Either, join_all, select};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use steadfast::{circuit_breaker::State, time::Clock};

use super::{Result, Shop, say};

const S: fn(u64) -> Duration = Duration::from_secs;

/// An operator, or a guest.
#[derive(Clone)]
struct Person {
    name: &'static str,
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

type Form = Vec<(String, String)>;

impl Person {
    async fn open(&self, target: &str) -> Result<http::Response<Incoming>> {
        let uri = format!("http://{}/console{target}", self.address);
        Ok(self.client.request(Request::get(uri).header("x-user", self.name).body(Full::default())?).await?)
    }

    async fn get(&self, target: &str) -> Result<String> {
        let response = self.open(target).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("{target}: {}", response.status()).into());
        }
        Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?)
    }

    async fn component(&self, name: &str) -> Result<Value> {
        let state: Value = serde_json::from_str(&self.get(&format!("/state.json?component={name}")).await?)?;
        Ok(state["components"][0].clone())
    }

    /// Returns the address of the form of the page on which an action is confirmed, and its fields.
    async fn form(&self, component: &str, of: &str, action: &str) -> Result<Form> {
        let page = self.get(&format!("/?component={component}&of={of}&do={action}")).await?;
        let field = |rest: &str| {
            let mut parts = rest.split('"');
            let name = parts.next()?.to_owned();
            Some((name, parts.nth(1)?.to_owned()))
        };
        let action = page.split("<form method=\"post\" action=\"").nth(1).and_then(|rest| rest.split('"').next());
        let action = action.map(|action| ("action".to_owned(), action.replace("&amp;", "&")));
        Ok(action.into_iter().chain(page.split("<input type=\"hidden\" name=\"").skip(1).filter_map(field)).collect())
    }

    async fn send(&self, form: &Form, origin: &str) -> Result<(StatusCode, String)> {
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let action = form.iter().find(|(name, _)| name == "action").map_or("", |(_, action)| action);
        let fields = form.iter().filter(|(name, _)| name != "action");
        let body: Vec<_> = fields.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let request = Request::post(format!("http://{}/console{action}", self.address))
            .header("x-user", self.name)
            .header(header::ORIGIN, origin)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::from(body.join("&")))?;
        let response = self.client.request(request).await?;
        let next = response.headers().get(header::LOCATION).and_then(|next| next.to_str().ok()).unwrap_or_default();
        Ok((response.status(), next.to_owned()))
    }

    /// Sends a form as the page itself does.
    async fn confirm(&self, form: &Form) -> Result<(StatusCode, String)> {
        self.send(form, &format!("http://{}", self.address)).await
    }
}

/// Waits for a fact, and returns the time that it took.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<Duration> {
    let clock = Clock::tokio();
    let begun = clock.now();
    while !holds().await? {
        if (clock.now() - begun) > limit {
            return Err(format!("not within {limit:?}: {what}").into());
        }
        clock.sleep(Duration::from_millis(50)).await;
    }
    Ok(clock.now() - begun)
}

/// Returns the result of the work, or `None` if it takes longer.
async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(Clock::tokio().sleep(time))).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

pub(crate) fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(what.into()) }
}

pub(crate) async fn play(shop: &Shop, address: SocketAddr, viewers: usize) -> Result<()> {
    let clock = Clock::tokio();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let person = |name| Person { name, address, client: client.clone() };
    let (olga, otto, guest) = (person("olga"), person("otto"), person("guest"));
    let (mut actions, mut conflicts, mut forged_refused) = (0, 0, 0);

    // Nobody looks: nothing is asked.
    clock.sleep(S(1)).await;
    ensure(shop.asked.load(SeqCst) == 0, "the console asked the queue while nobody looked")?;

    // Orders are stuck, and deliveries are dead letters.
    shop.mail_is_away.store(true, SeqCst);
    shop.order_and_deliver(4).await?;
    let stuck = async || Ok(olga.component("orders").await?["facts"][1][1] == "4");
    until("the orders are stuck", S(60), stuck).await?;
    let dead = async || Ok(olga.component("deliveries").await?["trouble"] == "stuck");
    until("a dead letter is shown", S(60), dead).await?;

    // A page that is open sees the breaker open.
    let mut page = olga.open("/?live").await?.into_body();
    let seen = async |page: &mut Incoming, text: &str| -> Result<()> {
        while let Some(frame) = page.frame().await {
            if String::from_utf8_lossy(frame?.data_ref().map_or(&[][..], |data| data)).contains(text) {
                return Ok(());
            }
        }
        Err("the live updates ended".into())
    };
    shop.bank_is_away.store(true, SeqCst);
    until("the breaker opens", S(60), async || Ok(shop.breaker.state() == State::Open)).await?;
    let begun = clock.now();
    within(S(60), seen(&mut page, "rejected by the circuit breaker")).await.ok_or("the page never told it")??;
    let shown_after = clock.now() - begun;
    drop(page);
    // Within two seconds on a quiet machine, which `scripts/release-checks` demands.
    say(format!("the breaker was on the page {} ms after it opened", shown_after.as_millis()))?;
    say(format!("why: {}", olga.component("bank").await?["why"].as_str().unwrap_or_default()))?;
    let first_page = olga.get("").await?;
    ensure(first_page.contains("components need attention"), "the first page does not say that something is wrong")?;
    ensure(!first_page.contains("<b>has no address</b>"), "text from outside is markup")?;
    say("the first page tells of the breaker, the orders and the dead letter")?;

    // A guest cannot act, and a form of another site is refused.
    let form = olga.form("bank", "", "reset").await?;
    for (person, form, origin) in [
        (&guest, &form, format!("http://{address}")),
        (&otto, &form, format!("http://{address}")),
        (&olga, &form, "https://evil.example".to_owned()),
        (&olga, &form, "null".to_owned()),
    ] {
        ensure(person.send(form, &origin).await?.0 == StatusCode::FORBIDDEN, "a forged form was accepted")?;
        forged_refused += 1;
    }
    ensure(olga.component("bank").await?["state"] != "closed", "a forged form took effect")?;

    // Bank and mails are back. Two operators reset the breaker: one does, the other is told.
    shop.bank_is_away.store(false, SeqCst);
    shop.mail_is_away.store(false, SeqCst);
    let (one, other) = (olga.form("bank", "", "reset").await?, otto.form("bank", "", "reset").await?);
    let begun = shop.breaker.state();
    ensure(olga.confirm(&one).await?.0 == StatusCode::SEE_OTHER, "the breaker was not reset")?;
    actions += 1;
    ensure(otto.confirm(&other).await?.0 == StatusCode::CONFLICT, "the second operator got no conflict")?;
    conflicts += 1;
    say(format!("the breaker was {}, and is {}", begun.as_str(), shop.breaker.state().as_str()))?;

    // The answer is lost, and the form is sent again: one redrive.
    let form = olga.form("deliveries", "", "redrive").await?;
    let (first, again) = (olga.confirm(&form).await?, olga.confirm(&form).await?);
    ensure(first == again && first.0 == StatusCode::SEE_OTHER, "a form that was sent again got another answer")?;
    ensure(olga.get(&first.1).await?.contains("1 dead letter sent again."), "the result is not told")?;
    actions += 1;

    // Stuck orders are retried, and complete.
    let shown = olga.component("orders").await?;
    let rows = shown["tables"].as_array().into_iter().flatten().filter(|table| table["caption"] == "Open sagas");
    let ids = rows.flat_map(|table| table["rows"].as_array().cloned().unwrap_or_default());
    let ids: Vec<_> = ids.filter_map(|row| row["of"].as_str().map(str::to_owned)).collect();
    for id in &ids {
        let form = olga.form("orders", id, "retry").await?;
        let (status, next) = olga.confirm(&form).await?;
        ensure(status == StatusCode::SEE_OTHER, "an order was not retried")?;
        ensure(olga.get(&next).await?.contains("The saga is completed."), "a retried order is not completed")?;
        actions += 1;
    }
    ensure(shop.orders.list_open().await?.is_empty(), "an order is open")?;
    say(format!("{} stuck orders were retried, and are completed", ids.len()))?;

    // Many pages stay open: the queue is asked as often as for one.
    let pages = join_all((0..viewers).map(async |_| olga.open("/?live").await)).await;
    let mut pages = pages.into_iter().map(|page| Ok(page?.into_body())).collect::<Result<Vec<_>>>()?;
    ensure(shop.console.viewers() == viewers as u64, "not all viewers are counted")?;
    if viewers == 64 {
        ensure(olga.open("/?live").await?.status() == StatusCode::SERVICE_UNAVAILABLE, "the 65th viewer was accepted")?;
    }
    let (asked, begun) = (shop.asked.load(SeqCst), clock.now());
    let end = begun + S(15);
    join_all(pages.iter_mut().map(
        async |page| {
            while let Some(Some(Ok(_))) = within(end - clock.now(), page.frame()).await {}
        },
    ))
    .await;
    let requests = (shop.asked.load(SeqCst) - asked) as f64;
    let took = (clock.now() - begun).as_secs_f64();
    let requests_to_engine_per_hour = (requests / took * 3600.0).round();
    // Four requests each 5 s, and one look more or less.
    ensure(requests <= 4.0 * (took / 5.0 + 1.0), "the cost grows with the viewers")?;
    drop(pages);

    let summary = json!({
        "viewers": viewers,
        "requests_to_engine_per_hour": requests_to_engine_per_hour,
        "actions": actions,
        "conflicts": conflicts,
        "forged_refused": forged_refused,
    });
    Ok(say(summary.to_string())?)
}
