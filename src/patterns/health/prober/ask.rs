//! One probe over HTTP: look-up, request, body, certificate.
use std::{
    collections::HashMap,
    error::Error,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    str::FromStr as _,
    sync::Arc,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use reqwest::{
    Client, ClientBuilder, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
    tls::TlsInfo,
};
use tokio::task::spawn_blocking;
use x509_parser::parse_x509_certificate;

use super::{
    ProbeFailure, ProbeReport, ProberConfig,
    target::{Checked, MAX_BODY},
};
use crate::{
    sync::Mutex,
    time::{Clock, Timestamp},
};

/// A failure, and its text for events.
pub(super) type Failed = (ProbeFailure, String);

/// Makes the builder of a client.
pub(super) type NewClient = Box<dyn Fn() -> ClientBuilder + Send + Sync>;

/// Asks targets. Each probe has a connection and a TLS session of its own, so that it sees name and
/// certificate anew.
pub(super) struct Asker {
    new_client: NewClient,
    /// For targets without TLS. A client keeps the sessions of TLS, and a resumed one verifies no
    /// certificate.
    plain: Client,
    names: Arc<dyn Resolve>,
    found: Found,
}

impl Asker {
    pub(super) fn new(new_client: NewClient, names: Arc<dyn Resolve>) -> Result<Self, reqwest::Error> {
        let found = Found::default();
        let plain = build(&new_client, &found)?;
        Ok(Self { new_client, plain, names, found })
    }

    /// Asks a target, and completes the report.
    pub(super) async fn ask(
        &self,
        target: &Checked,
        report: &mut ProbeReport,
        config: &ProberConfig,
        clock: &Clock,
    ) -> Result<(), Failed> {
        let began = clock.now();
        let addresses = self.look_up(target).await.map_err(|error| (ProbeFailure::NoAddress, error.to_string()));
        report.look_up = clock.now() - began;
        let expected = |address: &IpAddr| target.addresses.is_empty() || target.addresses.contains(address);
        if let Some(other) = addresses?.into_iter().find(|address| !expected(address)) {
            return Err((
                ProbeFailure::UnexpectedAddress,
                format!("{} is {other}", target.url.host_str().unwrap_or("")),
            ));
        }
        // The address may hold a password.
        let no_answer = |error: reqwest::Error| (ProbeFailure::NoAnswer, chain(&error.without_url()));
        let is_secure = target.url.scheme() == "https";
        let client = if is_secure { build(&self.new_client, &self.found) } else { Ok(self.plain.clone()) };
        let mut answer = client.map_err(no_answer)?.get(target.url.clone()).send().await.map_err(no_answer)?;
        let code = answer.status().as_u16();
        report.code = Some(code);
        // Judged before the rest of the answer, so that its end is told whatever that is.
        let certificate = if is_secure { judge_certificate(&answer, report, config, clock) } else { Ok(()) };
        if code != target.status {
            return Err((ProbeFailure::Status, format!("status {code} instead of {}", target.status)));
        }
        if let Some(text) = &target.text
            && !has_text(&mut answer, text.as_bytes()).await.map_err(no_answer)?
        {
            return Err((ProbeFailure::MissingText, "the body does not contain the expected text".to_owned()));
        }
        certificate
    }

    /// Looks the name of a target up. The request that follows uses these addresses.
    async fn look_up(&self, target: &Checked) -> Result<Vec<IpAddr>, Box<dyn Error + Send + Sync>> {
        let Some(name) = target.url.domain() else {
            // An address in place of a name; that of version 6 is in brackets.
            let host = target.url.host_str().unwrap_or_default();
            return Ok(host.trim_matches(['[', ']']).parse().into_iter().collect());
        };
        let found: Vec<_> = self.names.resolve(Name::from_str(name)?).await?.collect();
        if found.is_empty() {
            return Err("the name has no address".into());
        }
        let addresses = found.iter().map(SocketAddr::ip).collect();
        self.found.0.lock().insert(name.to_owned(), found);
        Ok(addresses)
    }
}

/// Builds a client that asks the addresses that were found, and no proxy.
fn build(new_client: &NewClient, found: &Found) -> Result<Client, reqwest::Error> {
    let client = new_client().tls_info(true).pool_max_idle_per_host(0).redirect(Policy::none());
    client.no_proxy().dns_resolver(Arc::new(found.clone())).build()
}

/// The addresses that were found last, by name: what a probe connects to is what it has seen.
#[derive(Clone, Default)]
struct Found(Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>);

impl Resolve for Found {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.lock().get(name.as_str()).cloned();
        Box::pin(async move {
            let found = found.ok_or_else(|| io::Error::other("the name was not looked up"))?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// A look-up of a name.
type LookUp = Shared<BoxFuture<'static, Result<Vec<SocketAddr>, String>>>;

/// The names as the system knows them. A look-up occupies a thread until the system has answered,
/// also if its probe was dropped. So there is one of a name at a time, for all its probes.
#[derive(Clone)]
pub(super) struct SystemNames {
    ask: fn(&str) -> io::Result<Vec<SocketAddr>>,
    under_way: Arc<Mutex<HashMap<String, LookUp>>>,
}

impl Default for SystemNames {
    fn default() -> Self {
        // The port is that of the request.
        Self { ask: |name| Ok((name, 0).to_socket_addrs()?.collect()), under_way: Arc::default() }
    }
}

impl SystemNames {
    /// Returns the look-up that is under way, or starts one.
    fn look_up(&self, name: &str) -> LookUp {
        let mut under_way = self.under_way.lock();
        // One that a runtime did not start before its end is ready, and still there.
        if let Some(found) = under_way.get(name).filter(|found| found.peek().is_none()) {
            return found.clone();
        }
        let (this, asked) = (self.clone(), name.to_owned());
        let asks = spawn_blocking(move || {
            let found = (this.ask)(&asked);
            this.under_way.lock().remove(&asked);
            found.map_err(|error| error.to_string())
        });
        let found = async { asks.await.unwrap_or_else(|ended| Err(ended.to_string())) }.boxed().shared();
        under_way.insert(name.to_owned(), found.clone());
        found
    }
}

impl Resolve for SystemNames {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.look_up(name.as_str());
        Box::pin(async move { Ok(Box::new(found.await?.into_iter()) as Addrs) })
    }
}

/// Reads a body until it contains the text, or has no more of it.
async fn has_text(answer: &mut Response, text: &[u8]) -> Result<bool, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        // The text may begin in the chunks before.
        let from = body.len().saturating_sub(text.len());
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_BODY - body.len())]);
        if body[from..].windows(text.len()).any(|part| part == text) {
            return Ok(true);
        }
        if body.len() == MAX_BODY {
            break;
        }
    }
    Ok(false)
}

/// Judges the certificate that the server has shown.
fn judge_certificate(
    answer: &Response,
    report: &mut ProbeReport,
    config: &ProberConfig,
    clock: &Clock,
) -> Result<(), Failed> {
    let end = end_of_certificate(answer).map_err(|error| (ProbeFailure::Certificate, error))?;
    let judged = report.judge_certificate(end, clock.wall(), config);
    judged.map_err(|failure| (failure, format!("the certificate ends at {end}")))
}

/// Returns the end of the certificate that the server has shown.
fn end_of_certificate(answer: &Response) -> Result<Timestamp, String> {
    let shown = answer.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
    let shown = shown.ok_or("the client does not tell the certificate")?;
    let (_, certificate) = parse_x509_certificate(shown).map_err(|error| format!("the certificate: {error}"))?;
    let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    Ok(Timestamp::from_millis(end.saturating_mul(1000)))
}

/// Returns the text of an error with those of its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::sync::{
        Mutex as Gate,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    static GATE: Gate<()> = Gate::new(());
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn ask(_name: &str) -> io::Result<Vec<SocketAddr>> {
        ASKED.fetch_add(1, SeqCst);
        drop(GATE.lock());
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))])
    }

    // Guarantee: health 7.
    #[tokio::test]
    async fn the_look_ups_of_dropped_probes_are_one_look_up_until_it_has_ended() {
        let names = SystemNames { ask, ..SystemNames::default() };
        let resolve = || names.resolve(Name::from_str("shop.test").unwrap());
        {
            let _closed = GATE.lock().unwrap();
            for _ in 0..20 {
                assert!(resolve().now_or_never().is_none());
            }
        }
        assert_eq!(resolve().await.unwrap().count(), 1);
        assert!(ASKED.load(SeqCst) <= 2, "{ASKED:?}");
        assert!(names.under_way.lock().is_empty());
        let before = ASKED.load(SeqCst);
        assert_eq!(resolve().await.unwrap().count(), 1);
        assert_eq!(ASKED.load(SeqCst), before + 1, "the name is looked up anew");
    }
}
