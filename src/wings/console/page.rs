//! The pages: what is wrong first, then each component, then one component with its parts and
//! actions.
use std::sync::{Arc, LazyLock};

use serde::Serialize;

use super::{
    board::{ActionResult, Board, Reading, Shown},
    markup::{Markup, encoded, plain},
    readout::{Action, Body, Note, Table, count, spoken},
    settings::Change,
};
use crate::sha256::{base64, sha256};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");

/// The policy that a browser applies to each page: our style, our script, and nothing else.
pub(super) static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| base64(&sha256(text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT),
    )
});

/// A page, or a part of one that is updated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the component; `None` for the first page.
    pub(super) component: Option<usize>,
    pub(super) of: Option<String>,
}

/// The parts of a page that change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Content {
    pub(super) title: String,
    pub(super) headline: String,
    /// `wrong` if an operator should look, else empty.
    pub(super) level: &'static str,
    pub(super) main: Markup,
    /// The component that it is about, and the part of it.
    #[serde(skip)]
    within: Option<(String, Option<String>)>,
}

impl Content {
    /// The script of the page writes title and headline as text, so they are plain here already.
    fn new(title: &str, headline: &str, level: &'static str, main: Markup) -> Self {
        Self { title: plain(title), headline: plain(headline), level, main, within: None }
    }

    fn within(mut self, shown: &Shown, of: Option<&str>) -> Self {
        self.within = Some((shown.name.clone(), of.map(str::to_owned)));
        self
    }
}

/// A message above a page: the result of an action.
pub(super) struct Notice {
    pub(super) text: String,
    pub(super) is_wrong: bool,
}

impl Notice {
    pub(super) fn of(result: &ActionResult) -> Self {
        let (text, is_wrong) = match result {
            ActionResult::Done(text) => (text.clone(), false),
            ActionResult::Failed(why) => (format!("The action failed: {why}."), true),
            ActionResult::Conflict(why) => (format!("Nothing was done: {why}."), true),
            ActionResult::Running => ("The action goes on. Reload this page to see its result.".to_owned(), false),
        };
        Self { text, is_wrong }
    }
}

/// Reads what a place shows, and writes it.
pub(super) async fn content(board: &Arc<Board>, place: &Place, operates: bool) -> Content {
    match place.component {
        None => first_page(board, &board.read_all().await),
        Some(component) => {
            let reading = board.read(component, place.of.as_deref()).await;
            component_page(board, component, place.of.as_deref(), &reading, operates)
        }
    }
}

fn title(board: &Board) -> &str {
    board.name.as_ref().map_or("Console", |name| name.as_str())
}

fn first_page(board: &Board, readings: &[Arc<Reading>]) -> Content {
    let mut troubles: Vec<_> =
        board.shown.iter().zip(readings).filter(|(_, read)| read.out.trouble.is_some()).collect();
    troubles.sort_by_key(|(_, reading)| reading.out.trouble);
    let all = board.shown.len();
    let headline = match (troubles.as_slice(), all) {
        ([], 0) => "Nothing is watched".to_owned(),
        ([], 1) => "The component reports no trouble".to_owned(),
        ([], _) => format!("None of {all} components reports trouble"),
        ([(shown, reading)], _) => format!("{} is {}", shown.name, reading.out.state),
        (troubles, _) => format!("{} of {all} components need attention", troubles.len()),
    };
    let title = match troubles.len() {
        0 => title(board).to_owned(),
        n => format!("({n}) {}", title(board)),
    };
    let mut markup = Markup::default();
    if !troubles.is_empty() {
        markup.element("section", &[("aria-labelledby", "attention")], |markup| {
            markup.line("h2", &[("id", "attention")], "Needs attention");
            markup.element("ol", &[("class", "troubles")], |markup| {
                troubles.iter().for_each(|(shown, reading)| trouble(markup, shown, reading));
            });
        });
    }
    let mut kinds: Vec<&'static str> = Vec::new();
    for shown in &board.shown {
        if !kinds.contains(&group(shown)) {
            kinds.push(group(shown));
        }
    }
    for kind in kinds {
        markup.element("section", &[("aria-label", kind)], |markup| {
            markup.line("h2", &[], kind);
            markup.element("ul", &[("class", "cards")], |markup| {
                let members = board.shown.iter().zip(readings).filter(|(shown, _)| group(shown) == kind);
                members.for_each(|(shown, reading)| card(markup, shown, reading));
            });
        });
    }
    let level = if troubles.is_empty() { "" } else { "wrong" };
    Content::new(&title, &headline, level, markup)
}

/// Returns the heading under which a component stands on the first page.
fn group(shown: &Shown) -> &'static str {
    match shown.source.kind() {
        "queue" | "queue listener" => "Queues",
        "saga" => "Sagas",
        "stream" => "Streams",
        "election" => "Elections",
        "cache" => "Caches",
        "shard map" => "Shards",
        _ => "Calls",
    }
}

fn address(name: &str, of: Option<&str>) -> String {
    let of = of.map(|of| format!("&of={}", encoded(of))).unwrap_or_default();
    format!("?component={}{of}", encoded(name))
}

/// Returns the time for which a component is in its state, as far as it or the console knows.
fn since(reading: &Reading) -> Option<String> {
    match (reading.out.since, reading.seen) {
        (Some(since), _) => Some(format!("for {}", spoken(since))),
        (None, Some(seen)) if seen.as_secs() > 0 => Some(format!("for at least {}", spoken(seen))),
        (None, _) => None,
    }
}

fn trouble(markup: &mut Markup, shown: &Shown, reading: &Reading) {
    markup.element("li", &[], |markup| {
        markup.element("div", &[], |markup| {
            markup.line("a", &[("href", &address(&shown.name, None))], &shown.name);
            markup.line("p", &[("class", "kind")], shown.source.kind());
        });
        markup.element("div", &[], |markup| {
            markup.line("strong", &[], &reading.out.state);
            if let Some(since) = since(reading) {
                markup.line("span", &[("class", "quiet")], &format!(" {since}"));
            }
            markup.line("p", &[("class", "why")], &reading.out.why);
        });
    });
}

fn card(markup: &mut Markup, shown: &Shown, reading: &Reading) {
    let out = &reading.out;
    let class = if out.trouble.is_some() { "card wrong" } else { "card" };
    markup.element("li", &[("class", class)], |markup| {
        markup.element("div", &[("class", "top")], |markup| {
            markup.element("h3", &[], |markup| {
                markup.line("a", &[("href", &address(&shown.name, None))], &shown.name);
            });
            state(markup, reading);
        });
        markup.line("p", &[("class", "kind")], shown.source.kind());
        markup.element("dl", &[], |markup| {
            for (label, value) in out.facts.iter().take(4) {
                markup.line("dt", &[], label);
                markup.line("dd", &[], value);
            }
        });
        if let Some((label, values)) = reading.drawn.iter().find(|(_, values)| changes(values)) {
            markup.element("figure", &[], |markup| {
                chart(markup, label, values);
                markup.line("figcaption", &[], label);
            });
        }
    });
}

fn state(markup: &mut Markup, reading: &Reading) {
    let class = if reading.out.trouble.is_some() { "state wrong" } else { "state" };
    markup.line("span", &[("class", class)], &reading.out.state);
}

/// Returns `true` if there is something to draw.
fn changes(values: &[f64]) -> bool {
    values.iter().any(|value| Some(value) != values.first())
}

/// Draws a number over time as a line, with its range in words.
fn chart(markup: &mut Markup, label: &str, values: &[f64]) {
    let range = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or_default();
    let (low, high) = (range(f64::min), range(f64::max));
    let point = |(at, value): (usize, &f64)| {
        let (x, y) = (at as f64 / (values.len() - 1) as f64, (value - low) / (high - low));
        format!("{:.1},{:.1}", x * 200.0, 29.0 - y * 27.0)
    };
    let points = values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ");
    let words = format!("{label} over the last {} points: {low} to {high}", values.len());
    let shape: &[_] =
        &[("class", "chart"), ("viewBox", "0 0 200 30"), ("preserveAspectRatio", "none"), ("role", "img")];
    markup.element("svg", &[shape, &[("aria-label", words.as_str())]].concat(), |markup| {
        let line: &[_] = &[("fill", "none"), ("stroke", "currentColor"), ("vector-effect", "non-scaling-stroke")];
        markup.element("polyline", &[line, &[("points", points.as_str())]].concat(), |_| {});
    });
}

fn component_page(board: &Board, component: usize, of: Option<&str>, reading: &Reading, operates: bool) -> Content {
    let (shown, out) = (&board.shown[component], &reading.out);
    let mut markup = Markup::default();
    let class = if out.trouble.is_some() { "sheet wrong" } else { "sheet" };
    markup.element("section", &[("class", class), ("aria-label", "State")], |markup| {
        if !out.why.is_empty() {
            markup.line("p", &[("class", "why")], &out.why);
        }
        markup.element("dl", &[], |markup| {
            let since = since(reading).map(|since| ("in this state", since));
            for (label, value) in since.iter().chain(&out.facts) {
                markup.element("div", &[], |markup| {
                    markup.line("dt", &[], label);
                    markup.line("dd", &[], value);
                });
            }
        });
        if reading.drawn.iter().any(|(_, values)| changes(values)) {
            markup.element("div", &[("class", "charts")], |markup| {
                for (label, values) in reading.drawn.iter().filter(|(_, values)| changes(values)) {
                    markup.element("figure", &[], |markup| {
                        chart(markup, label, values);
                        markup.line("figcaption", &[], label);
                    });
                }
            });
        }
    });
    if !out.actions.is_empty() {
        markup.element("section", &[("aria-label", "Actions")], |markup| {
            markup.line("h2", &[], "Actions");
            match operates {
                false => markup.line("p", &[("class", "quiet")], "You can read, and not act."),
                true => markup.element("ul", &[("class", "actions")], |markup| {
                    for action in &out.actions {
                        let href = format!("{}&do={}", address(&shown.name, of), action.name);
                        markup.element("li", &[], |markup| {
                            markup.line("a", &[("class", "button"), ("href", &href)], &format!("{} …", action.title));
                        });
                    }
                }),
            }
        });
    }
    if let Some(body) = &out.body {
        write_body(&mut markup, body);
    }
    for table in &out.tables {
        // Settings are long, and read seldom.
        if table.caption == "Settings" {
            markup.element("details", &[("id", "settings")], |markup| {
                markup.line("summary", &[], &table.caption);
                write_table(markup, shown, table);
            });
        } else {
            markup.line("h2", &[], &table.caption);
            write_table(&mut markup, shown, table);
        }
    }
    let headline = format!("{}: {}", of.unwrap_or(&shown.name), out.state);
    let level = if out.trouble.is_some() { "wrong" } else { "" };
    let title = format!("{} · {}", shown.name, title(board));
    Content::new(&title, &headline, level, markup).within(shown, of)
}

fn write_body(markup: &mut Markup, body: &Body) {
    markup.line("h2", &[], "Body");
    let size = count(body.bytes as u64, "byte");
    let words = match body.cut {
        0 => format!("{size}, as {}", body.encoding),
        cut => format!("{size}, as {}; the last {cut} are not shown", body.encoding),
    };
    markup.line("p", &[("class", "quiet")], &words);
    markup.element("div", &[("class", "scroll")], |markup| markup.line("pre", &[], &body.text));
}

fn write_table(markup: &mut Markup, shown: &Shown, table: &Table) {
    // It scrolls by the keyboard, too.
    let scroll = [("class", "scroll"), ("tabindex", "0"), ("role", "region"), ("aria-label", &*table.caption)];
    markup.element("div", &scroll, |markup| {
        markup.element("table", &[], |markup| {
            markup.line("caption", &[], &table.caption);
            markup.element("thead", &[], |markup| {
                markup.element("tr", &[], |markup| {
                    table.columns.iter().for_each(|column| markup.line("th", &[("scope", "col")], column));
                });
            });
            markup.element("tbody", &[], |markup| {
                for row in &table.rows {
                    let class: &[_] = if row.wrong { &[("class", "wrong")] } else { &[] };
                    markup.element("tr", class, |markup| {
                        for (at, cell) in row.cells.iter().enumerate() {
                            match (at, &row.of) {
                                (0, Some(of)) => markup.element("th", &[("scope", "row")], |markup| {
                                    markup.line("a", &[("href", &address(&shown.name, Some(of)))], cell);
                                }),
                                (0, None) => markup.line("th", &[("scope", "row")], cell),
                                _ => markup.line("td", &[], cell),
                            }
                        }
                    });
                }
            });
        });
    });
}

/// The hidden fields of a form.
pub(super) struct Form<'a> {
    pub(super) token: &'a str,
    pub(super) id: &'a str,
    pub(super) acts: u64,
}

/// The step of an action that a page is about.
#[derive(Clone, Copy)]
pub(super) enum Stage<'a> {
    /// The operator confirms the action.
    Confirm,
    /// The operator edits this text, whose difference is shown next.
    Edit(&'a str),
    /// The operator confirms these changes, which are those of the text.
    Apply(&'a str, &'a [Change]),
}

/// Returns the page on which an operator confirms an action.
pub(super) fn confirmation(
    board: &Board,
    component: usize,
    of: Option<&str>,
    action: &Action,
    form: Form<'_>,
    stage: Stage<'_>,
) -> Content {
    let shown = &board.shown[component];
    let back = address(&shown.name, of);
    let mut markup = Markup::default();
    markup.element("section", &[("class", "sheet")], |markup| {
        match stage {
            Stage::Confirm | Stage::Edit(_) => markup.line("p", &[("class", "why")], &action.effect),
            Stage::Apply(_, changes) => {
                let effect = format!("Changes {} of this process.", count(changes.len() as u64, "setting"));
                markup.line("p", &[("class", "why")], &effect);
                let mut table = Table::new("Difference", &["setting", "now", "next"]);
                let row = |Change { name, now, next }: &Change| [name.clone(), now.clone(), next.clone()];
                changes.iter().for_each(|change| table.push(row(change)));
                write_table(markup, shown, &table);
            }
        }
        // A browser changes line breaks of a field, and the page shows some characters as others: text
        // from outside is in the address, where it is encoded.
        let review = if let Stage::Edit(_) = stage { "&review" } else { "" };
        let version = encoded(&action.version);
        let target = format!("{back}&do={}&acts={}&version={version}{review}", action.name, form.acts);
        markup.element("form", &[("method", "post"), ("action", &target)], |markup| {
            for (name, value) in [("token", form.token), ("form", form.id)] {
                markup.tag("input", &[("type", "hidden"), ("name", name), ("value", value)]);
            }
            match stage {
                Stage::Confirm => {}
                Stage::Edit(text) => markup.element("p", &[], |markup| {
                    markup.line("label", &[("for", "note")], "Settings, as TOML");
                    let kind: &[_] = &[("rows", "18"), ("class", "code"), ("spellcheck", "false")];
                    markup.line("textarea", &[&[("id", "note"), ("name", "note")], kind].concat(), text);
                }),
                Stage::Apply(text, _) => {
                    markup.tag("input", &[("type", "hidden"), ("name", "note"), ("value", text)]);
                }
            }
            if action.note == Note::Required {
                markup.element("p", &[], |markup| {
                    markup.line("label", &[("for", "note")], "Note: what was found, and what was done");
                    let limits: &[_] = &[("rows", "3"), ("maxlength", "1000"), ("required", "")];
                    markup.element("textarea", &[&[("id", "note"), ("name", "note")], limits].concat(), |_| {});
                });
            }
            markup.element("div", &[("class", "actions")], |markup| {
                let title = if let Stage::Edit(_) = stage { "Show the difference" } else { &action.title };
                markup.line("button", &[("type", "submit")], title);
                markup.line("a", &[("class", "button"), ("href", &back)], "Back");
            });
        });
    });
    let headline = format!("{}: {}?", of.unwrap_or(&shown.name), action.title);
    let title = format!("{} · {}", action.title, title(board));
    Content::new(&title, &headline, "", markup).within(shown, of)
}

/// Returns a whole document. A place that is given is updated live, or reloads without a script.
pub(super) fn document(
    board: &Board,
    content: &Content,
    live: Option<&Place>,
    notice: Option<&Notice>,
    user: &str,
) -> String {
    let mut markup = Markup::default();
    markup.raw("<!doctype html>\n");
    markup.element("html", &[("lang", "en")], |markup| {
        markup.element("head", &[], |markup| {
            markup
                .raw("<meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
            markup.line("title", &[], &content.title);
            if live.is_some() {
                markup.raw("<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>");
            }
            markup.element("style", &[], |markup| markup.raw(STYLE));
        });
        markup.element("body", &[], |markup| {
            markup.element("header", &[], |markup| {
                markup.element("div", &[("class", "bar")], |markup| {
                    markup.element("nav", &[("aria-label", "Place")], |markup| {
                        markup.line("a", &[("href", "?")], title(board));
                        if let Some((name, of)) = &content.within {
                            markup.text(" / ");
                            markup.line("a", &[("href", &address(name, None))], name);
                            if let Some(of) = of {
                                markup.text(" / ");
                                markup.line("span", &[], of);
                            }
                        }
                    });
                    markup.line("span", &[], user);
                    let pulse: &[_] = &[("id", "pulse"), ("role", "status")];
                    markup.line("p", pulse, &board.clock.wall().to_string());
                });
                let class: &[_] = &[("id", "headline"), ("class", content.level), ("aria-live", "polite")];
                markup.line("h1", class, &content.headline);
                // Outside `main`, which is replaced.
                if let Some(notice) = notice {
                    let class = if notice.is_wrong { "notice wrong" } else { "notice" };
                    // With the focus, so that it is read aloud: it is there when the page is loaded.
                    let focus = [("tabindex", "-1"), ("autofocus", "")];
                    markup.line("p", &[&[("class", class), ("role", "status")], &focus[..]].concat(), &notice.text);
                }
            });
            let place = live.map(|place| {
                let component = place.component.map(|at| board.shown[at].name.as_str());
                match component {
                    Some(name) => format!("{}&live", address(name, place.of.as_deref())),
                    None => "?live".to_owned(),
                }
            });
            let live: &[_] = &[("data-live", place.as_deref().unwrap_or_default())];
            let main = |markup: &mut Markup| markup.append(&content.main);
            markup.element("main", if place.is_some() { live } else { &[] }, main);
            if place.is_some() {
                markup.element("script", &[], |markup| markup.raw(SCRIPT));
            }
        });
    });
    markup.into_string()
}
