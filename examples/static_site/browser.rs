//! A page that a real browser keeps open: one hour after the next release, and after a pruning, it loads its late files.
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path as UrlPath, State},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::StatusCode;
use object_store::{ObjectStoreExt as _, local::LocalFileSystem};
use steadfast::{
    lease::InMemoryLease,
    static_content::{CacheControl, Release, SiteConfig, SitePublisher, StaticSite},
    store::InMemoryStore,
    time::{Clock, ManualClock},
};
use tokio::net::TcpListener;

use crate::{
    common::{Failure, Result, say},
    devtools::Browser,
};

const HOUR: Duration = Duration::from_secs(3600);
/// Files that a page loads when it is opened, and late.
const FILES: [&str; 4] = ["app.js", "style.css", "late.js", "later.js"];

#[derive(Clone)]
struct Server {
    site: StaticSite,
    publisher: SitePublisher,
    bucket: Arc<LocalFileSystem>,
    time: ManualClock,
}

fn release(number: u32) -> Release {
    FILES.iter().fold(Release::new(), |release, path| {
        let text = match path.ends_with(".css") {
            true => format!("body {{ --release: {number} }}"),
            false => format!("window.loaded = (window.loaded || []).concat('{path} of {number}');"),
        };
        release.file(*path, text)
    })
}

/// Opens a page by this browser, and returns `true` if none of its files is missing.
pub(crate) async fn open(browser: &Path) -> Result<bool> {
    let (folder, (clock, time)) = (tempfile::tempdir()?, Clock::manual());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let config = SiteConfig::at(format!("http://{address}/")).keep_releases(1);
    let bucket = Arc::new(LocalFileSystem::new_with_prefix(folder.path())?);
    let (store, leases) = (Arc::new(InMemoryStore::new()), Arc::new(InMemoryLease::new()));
    let publisher = SitePublisher::builder(bucket.clone(), store.clone(), leases, "shop", config.clone());
    let publisher = publisher.clock(&clock).build()?;
    publisher.publish(release(1)).await?;
    let site = StaticSite::builder(store, "shop", config).clock(&clock).build().await?;
    let server = Server { site, publisher, bucket, time };
    let app =
        Router::new().route("/", get(page)).route("/next", post(next)).route("/{*path}", get(file)).with_state(server);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let mut browser = Browser::start(browser).await?;
    browser.open(&format!("http://{address}/")).await?;
    let told = browser.eval("told").await?;
    let told = told.as_str().unwrap_or_default();
    say(format!("  the page says: {told}"));
    let wanted = "app.js of 1, late.js of 1, later.js of 1; style 1; 0 missing; a new page has other links";
    Ok(told == wanted)
}

/// Renders a page that loads two files at once, and two when the next release is an hour old.
async fn page(State(server): State<Server>) -> std::result::Result<Html<String>, StatusCode> {
    let snapshot = server.site.snapshot();
    let mut links = BTreeMap::new();
    for path in FILES {
        let link = snapshot.url(path).zip(snapshot.integrity(path)).ok_or(StatusCode::NOT_FOUND)?;
        links.insert(path, link);
    }
    let ((app, app_digest), (style, style_digest)) = (links["app.js"], links["style.css"]);
    let late = ["late.js", "later.js"].map(|path| links[path]);
    let late = serde_json::to_string(&late).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(Html(format!(
        r#"<!doctype html><title>shop</title>
<link rel="stylesheet" href="{style}" integrity="{style_digest}"><body>
<script src="{app}" integrity="{app_digest}"></script>
<script>
const told = (async () => {{
  await fetch('/next', {{ method: 'POST' }});
  let missing = 0;
  for (const [url, integrity] of {late}) {{
    await new Promise(done => {{
      const script = Object.assign(document.createElement('script'), {{ src: url, integrity, onload: done }});
      script.onerror = () => {{ missing += 1; done(); }};
      document.head.append(script);
    }});
  }}
  const style = getComputedStyle(document.body).getPropertyValue('--release').trim();
  const again = await (await fetch('/')).text();
  const links = again.includes('{app}') ? 'the same' : 'other';
  return `${{window.loaded.join(', ')}}; style ${{style}}; ${{missing}} missing; a new page has ${{links}} links`;
}})();
</script>"#
    )))
}

/// The next release, an hour, and a pruning.
async fn next(State(server): State<Server>) -> StatusCode {
    let done = async {
        server.publisher.publish(release(2)).await?;
        server.time.advance(HOUR);
        server.publisher.prune().await?;
        server.site.refresh().await?;
        Ok::<_, Failure>(())
    };
    match done.await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn file(State(server): State<Server>, UrlPath(path): UrlPath<String>) -> Response {
    let caching = server.site.snapshot().cache_control(&path);
    let content_type = if path.ends_with(".css") { "text/css" } else { "text/javascript" };
    let headers = [("cache-control", caching.header()), ("content-type", content_type)];
    let found = match caching {
        CacheControl::Unknown => None,
        _ => match server.bucket.get(&path.as_str().into()).await {
            Ok(found) => found.bytes().await.ok(),
            Err(_) => None,
        },
    };
    match found {
        Some(bytes) => (headers, bytes).into_response(),
        None => (StatusCode::NOT_FOUND, [("cache-control", "no-store")]).into_response(),
    }
}
