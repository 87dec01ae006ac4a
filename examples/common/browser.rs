//! A real browser without a window, driven by the DevTools protocol over a pipe.
#![allow(dead_code, reason = "no example uses all of it")]
use std::{error::Error, fs, path::Path, process::Stdio, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::{Either, select};
use serde_json::{Value, json};
use steadfast::time::Clock;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Time within which a browser starts, loads a page, and answers a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page. It ends with this value.
pub(crate) struct Browser {
    _process: Child,
    _profile: TempDir,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The page, as the protocol names it.
    session: Option<String>,
    commands: u64,
    loads: u64,
    /// Texts of the dialogs that pages have opened.
    pub(crate) dialogs: Vec<String>,
    /// Errors of scripts, and what a page's policy has refused.
    pub(crate) errors: Vec<String>,
}

impl Browser {
    /// Starts this program, with a profile of its own.
    pub(crate) async fn start(program: &Path) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        // The browser reads commands from descriptor 3, and writes to 4.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--remote-debugging-pipe", &format!("--user-data-dir={}", profile.path().display())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (input, output) = process.stdin.take().zip(process.stdout.take()).ok_or("no pipes")?;
        let (output, dialogs, errors) = (BufReader::new(output), Vec::new(), Vec::new());
        let (session, commands, loads) = (None, 0, 0);
        let mut browser =
            Self { _process: process, _profile: profile, input, output, session, commands, loads, dialogs, errors };
        let target = browser
            .command("Target.createTarget", json!({ "url": "about:blank" }))
            .await
            .map_err(|error| format!("{} does not start: {error}; apt-get install chromium", program.display()))?;
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.command("Target.attachToTarget", target).await?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.command(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(browser)
    }

    /// Sends a command to the page, and returns its result.
    pub(crate) async fn command(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.send(method, params).await?;
        loop {
            let mut told = self.receive().await.map_err(|error| format!("{method}: {error}"))?;
            if told["id"] != id {
                self.happened(&told).await?;
            } else if told["error"].is_null() {
                return Ok(told["result"].take());
            } else {
                return Err(format!("{method}: {}", told["error"]["message"]).into());
            }
        }
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<u64> {
        self.commands += 1;
        let mut command = json!({ "id": self.commands, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.input.write_all(format!("{command}\0").as_bytes()).await?;
        Ok(self.commands)
    }

    async fn receive(&mut self) -> Result<Value> {
        let mut message = Vec::new();
        let read = std::pin::pin!(self.output.read_until(0, &mut message));
        match select(read, std::pin::pin!(Clock::tokio().sleep(PATIENCE))).await {
            Either::Left((read, _)) => read?,
            Either::Right(_) => return Err("the browser does not answer".into()),
        };
        match message.pop() {
            Some(0) => Ok(serde_json::from_slice(&message)?),
            _ => Err("the browser ended".into()),
        }
    }

    /// Takes notice of an event. A dialog holds up its page, so it is closed.
    async fn happened(&mut self, event: &Value) -> Result<()> {
        let (method, params) = (event["method"].as_str().unwrap_or_default(), &event["params"]);
        match method {
            "Page.loadEventFired" => self.loads += 1,
            "Page.javascriptDialogOpening" => {
                self.dialogs.push(params["message"].to_string());
                self.send("Page.handleJavaScriptDialog", json!({ "accept": true })).await?;
            }
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.errors.push(params["entry"].to_string());
            }
            _ => {}
        }
        Ok(())
    }

    /// Opens an address, and waits until it is loaded.
    pub(crate) async fn open(&mut self, url: &str) -> Result<()> {
        let loads = self.loads;
        let opened = self.command("Page.navigate", json!({ "url": url })).await?;
        if let Some(error) = opened["errorText"].as_str() {
            return Err(format!("{url}: {error}").into());
        }
        while self.loads == loads {
            let event = self.receive().await?;
            self.happened(&event).await?;
        }
        Ok(())
    }

    /// Returns the value of an expression on the page, or that of its promise.
    pub(crate) async fn eval(&mut self, expression: &str) -> Result<Value> {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut told = self.command("Runtime.evaluate", params).await?;
        match told["exceptionDetails"].is_null() {
            true => Ok(told["result"]["value"].take()),
            false => Err(told["exceptionDetails"]["exception"]["description"].to_string().into()),
        }
    }

    /// Waits until an expression is true on the page, and returns the time that it took. While another page is being loaded
    /// the expression has no value.
    pub(crate) async fn until(&mut self, what: &str, limit: Duration, expression: &str) -> Result<Duration> {
        let clock = Clock::tokio();
        let begun = clock.now();
        loop {
            let seen = self.eval(expression).await;
            if matches!(seen, Ok(Value::Bool(true))) {
                return Ok(clock.now() - begun);
            }
            if clock.now() - begun > limit {
                let text = self.eval("document.body.innerText").await.unwrap_or_default();
                return Err(format!("not within {limit:?}: {what} ({seen:?}). The page says: {text}").into());
            }
            clock.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Clicks into the middle of the element that an expression returns.
    pub(crate) async fn click(&mut self, element: &str) -> Result<()> {
        let place = format!(
            "(() => {{ const found = {element}; found.scrollIntoView({{ block: 'center' }}); \
             const box = found.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        );
        let place = self.eval(&place).await?;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.command("Input.dispatchMouseEvent", event).await?;
        }
        Ok(())
    }

    /// Presses a key.
    pub(crate) async fn press(&mut self, key: &str) -> Result<()> {
        let code = if key == "Enter" { 13 } else { 9 };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.command("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Sets the size of the screen, in pixels of CSS, and the scheme of colours.
    pub(crate) async fn screen(&mut self, width: u32, height: u32, scheme: &str) -> Result<()> {
        // As a desktop: a telephone would shrink a page that is too wide, until it fits.
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics).await?;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features })).await?;
        Ok(())
    }

    /// Pages that are opened from now on run no script of theirs.
    pub(crate) async fn forbid_scripts(&mut self) -> Result<()> {
        self.command("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await?;
        Ok(())
    }

    /// Writes a picture of the upper left part of the page, in pixels of CSS, as PNG.
    #[allow(dead_code, reason = "one of two examples has pictures for the docs")]
    pub(crate) async fn shoot_part(&mut self, path: &Path, width: u32, height: u32) -> Result<()> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let shot =
            self.command("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip })).await?;
        fs::write(path, STANDARD.decode(shot["data"].as_str().unwrap_or_default())?)?;
        Ok(())
    }

    /// Writes a picture of the page, as PNG.
    pub(crate) async fn shoot(&mut self, path: &Path) -> Result<()> {
        let shot = self.command("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await?;
        fs::write(path, STANDARD.decode(shot["data"].as_str().unwrap_or_default())?)?;
        Ok(())
    }
}
