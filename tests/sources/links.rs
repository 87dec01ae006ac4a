//! Links of the Markdown files, for three readers: a checkout (and a forge that shows it), crates.io, and docs.rs.
//!
//! README is shown by the first two, and only the first has the files of the repository: README links to pages by their
//! address on docs.rs. A page of `src/_docs` is shown by the first, and by rustdoc. It names an item by its path, as in
//! `[text][crate::retry]`. For rustdoc, `links.md` defines these labels before the page does, and the first definition
//! counts; for the others, the page defines them at its end.
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use crate::sources::texts;

/// Addresses of the documentation of this crate, and of a file of its package.
const DOCS: &str = "https://docs.rs/steadfast/latest/steadfast/";
const SOURCE: &str = "https://docs.rs/crate/steadfast/latest/source/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown file, with code taken out.
struct Page {
    /// Path below the root, with `/`.
    path: String,
    lines: Vec<String>,
    /// The anchors of the headings.
    anchors: BTreeSet<String>,
}

impl Page {
    fn new(path: &str, text: &str) -> Self {
        let (mut fenced, mut lines, mut anchors) = (false, Vec::new(), BTreeSet::new());
        for line in text.lines() {
            let is_fence = line.trim_start().starts_with("```");
            fenced ^= is_fence;
            let is_code = fenced || is_fence;
            lines.push(if is_code { String::new() } else { without_code(line) });
            let heading = line.split_once(' ').filter(|(marks, _)| !is_code && marks.starts_with('#'));
            anchors.extend(heading.map(|(_, heading)| slug(heading)));
        }
        Self { path: path.to_owned(), lines, anchors }
    }

    fn read(path: &str) -> Self {
        Self::new(path, &fs::read_to_string(root().join(path)).unwrap())
    }

    /// The definitions `[label]: target`.
    fn definitions(&self) -> Vec<(&str, &str)> {
        self.lines.iter().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
    }

    /// The targets of links and pictures that stand in the text, and those in HTML.
    fn targets(&self) -> Vec<&str> {
        let after = |mark: &'static str, end: char| {
            let of_line =
                move |line| str::split(line, mark).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0));
            self.lines.iter().flat_map(move |line: &String| of_line(line))
        };
        let html = after("src=\"", '"').chain(after("href=\"", '"')).chain(after("srcset=\"", '"'));
        after("](", ')').chain(html).collect()
    }

    /// The labels of links by reference: `[text][label]` and `[label]`. The releases of a changelog stand in brackets, too.
    fn labels(&self) -> Vec<&str> {
        let is_text = |line: &&String| !(line.starts_with('[') && line.contains("]: ") || line.starts_with("## ["));
        let texts = self.lines.iter().filter(is_text);
        texts.flat_map(|line| labels(line)).collect()
    }
}

fn labels(line: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), line);
    while let Some((_, begun)) = rest.split_once('[') {
        let Some((text, after)) = begun.split_once(']') else { break };
        rest = after;
        let is_inline = after.starts_with('(');
        match after.strip_prefix('[').and_then(|label| label.split_once(']')) {
            Some((label, after)) => {
                found.push(label);
                rest = after;
            }
            None if !is_inline => found.push(text),
            None => {}
        }
    }
    found
}

/// Empties code in back-quotes, so that what looks like a link in it is none.
fn without_code(line: &str) -> String {
    let parts: Vec<_> = line.split('`').collect();
    let closed = parts.len() % 2 == 1;
    let part = |(at, part): (usize, &&str)| {
        if at % 2 == 1 && (closed || at + 1 < parts.len()) { "" } else { *part }.to_owned()
    };
    parts.iter().enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// The anchor of a heading, as forges and rustdoc make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The Markdown files below a folder, as paths below the root.
fn files(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let parts = path.strip_prefix(root()).unwrap().iter().map(|part| part.to_str().unwrap());
            found.push(parts.collect::<Vec<_>>().join("/"));
        }
    }
    found.sort();
}

fn all_pages() -> Vec<Page> {
    let mut found = Vec::new();
    files(root(), &mut found);
    found.iter().map(|path| Page::read(path)).collect()
}

/// The files and folders that the package has, by the manifest.
fn packaged() -> Vec<String> {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let included = manifest["package"]["include"].as_array().unwrap();
    included.iter().map(|path| path.as_str().unwrap().trim_start_matches('/').to_owned()).collect()
}

fn is_packaged(file: &str, packaged: &[String]) -> bool {
    let is_in = |path: &String| match path.split_once('*') {
        Some((begin, end)) => file.starts_with(begin) && file.ends_with(end),
        None => file == path || file.starts_with(&format!("{path}/")),
    };
    root().join(file).is_file() && packaged.iter().any(is_in)
}

/// What the sources show of the items that a link may name.
struct Items {
    /// Names after `pub struct` and so on, with that word.
    items: BTreeSet<(String, String)>,
    /// Names of methods, fields and variants.
    members: BTreeSet<String>,
    /// Anchors of the headings in documentation.
    anchors: BTreeSet<String>,
    modules: BTreeSet<String>,
}

impl Items {
    fn read() -> Self {
        let mut it = Self {
            items: BTreeSet::new(),
            members: BTreeSet::new(),
            anchors: BTreeSet::new(),
            modules: BTreeSet::new(),
        };
        let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        for (path, text) in texts() {
            it.modules.extend(path.trim_end_matches(".rs").split('/').map(str::to_owned));
            for line in text.lines().map(str::trim_start) {
                if let Some(rest) = line.strip_prefix("pub ") {
                    let rest = rest.trim_start_matches("async ");
                    let rest = rest.strip_prefix("const ").filter(|rest| rest.starts_with("fn ")).unwrap_or(rest);
                    let (kind, rest) = rest.split_once(' ').unwrap_or_default();
                    let kind = if kind == "const" { "constant" } else { kind };
                    it.items.insert((kind.to_owned(), name(rest)));
                }
                if let Some((_, rest)) = line.split_once("fn ") {
                    it.members.insert(name(rest));
                }
                it.members.insert(name(line.trim_start_matches("pub ").trim_start_matches("const ")));
                let heading = line.strip_prefix("//!").or(line.strip_prefix("///")).map(str::trim_start);
                it.anchors.extend(heading.and_then(|line| Some(slug(line.strip_prefix('#')?.trim_start_matches('#')))));
            }
        }
        let mut pages = Vec::new();
        files(&root().join("src/_docs"), &mut pages);
        for path in pages {
            it.modules.extend(path.trim_end_matches(".md").split('/').map(str::to_owned));
            it.anchors.extend(Page::read(&path).anchors);
        }
        it
    }

    /// Returns `true` if the sources have the item of a page of the documentation, named without [`DOCS`].
    fn has(&self, address: &str) -> bool {
        let (page, anchor) = address.split_once('#').unwrap_or((address, ""));
        let mut parts: Vec<_> = page.split('/').collect();
        let file = parts.pop().unwrap_or("");
        if !parts.iter().all(|module| self.modules.contains(*module)) {
            return false;
        }
        let is_item = match file.strip_suffix(".html").unwrap_or("").split_once('.') {
            Some((kind, name)) => self.items.contains(&(kind.to_owned(), name.to_owned())),
            None => file.is_empty() || file == "index.html",
        };
        is_item
            && match anchor.split_once('.') {
                Some(("method" | "tymethod" | "structfield" | "variant" | "associatedconstant", name)) => {
                    self.members.contains(name)
                }
                Some(_) => false,
                None => anchor.is_empty() || self.anchors.contains(anchor),
            }
    }
}

/// A finding, unless a reader of this page reaches the target.
fn dead(page: &Page, target: &str, items: &Items, packaged: &[String]) -> Option<String> {
    let finding = |what: &str| Some(format!("{}: {target}: {what}", page.path));
    if let Some(address) = target.strip_prefix(DOCS) {
        return (!items.has(address)).then(|| finding("no such item"))?;
    }
    if let Some(file) = target.strip_prefix(SOURCE) {
        return (!is_packaged(file, packaged)).then(|| finding("the package has no such file"))?;
    }
    if target.starts_with("https://") || target.starts_with("http://") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let here = root().join(&page.path);
    let file = if file.is_empty() { here.clone() } else { here.parent().unwrap().join(file) };
    if !file.exists() {
        return finding("the repository has no such file");
    }
    if !anchor.is_empty() {
        let text = fs::read_to_string(&file).unwrap();
        if !Page::new("", &text).anchors.contains(anchor) {
            return finding("no such heading");
        }
    }
    None
}

#[test]
fn every_link_leads_its_reader_somewhere() {
    let (items, packaged) = (Items::read(), packaged());
    let mut found = Vec::new();
    for page in all_pages().iter().filter(|page| page.path != "src/_docs/links.md") {
        let mut targets = page.targets();
        targets.extend(page.definitions().into_iter().map(|(_, target)| target));
        found.extend(targets.iter().filter_map(|target| dead(page, target, &items, &packaged)));
        let defined: BTreeSet<_> = page.definitions().into_iter().map(|(label, _)| label).collect();
        let used: BTreeSet<_> = page.labels().into_iter().collect();
        found.extend(used.difference(&defined).map(|label| format!("{}: [{label}] is not defined", page.path)));
        found
            .extend(defined.difference(&used).map(|label| format!("{}: [{label}] is defined and not used", page.path)));
    }
    assert!(found.is_empty(), "{} dead links:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_link_of_the_board_and_of_the_alerts_leads_to_a_chapter() {
    let (items, mut seen) = (Items::read(), 0);
    for file in ["docs/grafana/steadfast.json", "docs/prometheus/alerts.yaml"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for rest in text.split(DOCS).skip(1) {
            seen += 1;
            let address = rest.split(['"', '\n']).next().unwrap();
            assert!(items.has(address), "{file}: {address}");
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn the_readme_has_no_link_that_needs_a_checkout() {
    let page = Page::read("README.md");
    let mut targets = page.targets();
    targets.extend(page.definitions().into_iter().map(|(_, target)| target));
    targets.retain(|target| !target.starts_with("https://"));
    // A picture has two sources: crates.io takes the second, a checkout the first.
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let has_second = |target: &&str| {
        text.contains(&format!("<source srcset=\"{target}\">")) && text.contains(&format!("src=\"{SOURCE}{target}\""))
    };
    targets.retain(|target| !has_second(target));
    assert!(targets.is_empty(), "{} links of README are dead on crates.io: {targets:#?}", targets.len());
}

#[test]
fn a_page_names_items_by_labels_that_rustdoc_resolves() {
    let links = Page::read("src/_docs/links.md");
    let known: BTreeMap<_, _> = links.definitions().into_iter().collect();
    let tree = fs::read_to_string(root().join("src/_docs/mod.rs")).unwrap();
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    let pages: Vec<_> = all_pages().into_iter().filter(|page| page.path.starts_with("src/_docs/")).collect();
    for page in pages.iter().filter(|page| page.path != links.path) {
        let path = &page.path;
        let included = path.trim_start_matches("src/_docs/");
        if !tree.contains(&format!("include_str!(\"links.md\")]\n#[doc = include_str!(\"{included}\")]"))
            && !tree.contains(&format!("include_str!(\"links.md\")]\n    #[doc = include_str!(\"{included}\")]"))
        {
            found.push(format!("{path}: `mod.rs` does not include links.md before it"));
        }
        // Rustdoc shows no files: only their labels lead anywhere.
        found.extend(
            page.targets()
                .into_iter()
                .filter(|target| !target.starts_with('#') && !target.starts_with("http"))
                .map(|target| format!("{path}: {target} is no label")),
        );
        for (label, target) in page.definitions() {
            if known.get(label).copied() != Some(label) && !target.starts_with("http") {
                found.push(format!("{path}: links.md does not define [{label}]: {label}"));
            }
            // The same item for both readers.
            let last = |text: &str| text.rsplit(['/', '.', '#', ':']).next().unwrap_or("").to_owned();
            let name = target.strip_suffix("/index.html").or(target.strip_suffix(".html")).unwrap_or(target);
            let name = name.strip_suffix(".md").unwrap_or(name);
            if last(label) != last(name) && target.starts_with(DOCS) {
                found.push(format!("{path}: [{label}] leads to {target}"));
            }
            used.insert(label.to_owned());
        }
    }
    let unused = known.keys().filter(|label| !used.contains(**label));
    found.extend(unused.map(|label| format!("{}: [{label}] is not used", links.path)));
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Run after `cargo doc --no-deps --all-features`, whose files it looks at.
#[test]
#[ignore = "needs the built documentation"]
fn every_link_to_docs_rs_is_a_page_that_rustdoc_makes() {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let built = target.join("doc/steadfast");
    assert!(built.join("index.html").exists(), "cargo doc --no-deps --all-features");
    let (mut found, mut seen) = (Vec::new(), 0);
    for page in all_pages() {
        let targets = page.targets().into_iter().chain(page.definitions().into_iter().map(|(_, target)| target));
        for address in targets.filter_map(|target| target.strip_prefix(DOCS)) {
            let (file, anchor) = address.split_once('#').unwrap_or((address, ""));
            let html = fs::read_to_string(built.join(file)).unwrap_or_default();
            if html.is_empty() || !anchor.is_empty() && !html.contains(&format!("id=\"{anchor}\"")) {
                found.push(format!("{}: {address}", page.path));
            }
            seen += 1;
        }
    }
    assert!(found.is_empty(), "{} of {seen} are missing:\n{}", found.len(), found.join("\n"));
    assert!(seen > 300, "{seen}");
}

/// A block `impl Builder<X>`: the type `X` as it stands there, and the public methods.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut found, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        if let Some((_, component)) = line.split_once(" Builder<").filter(|_| line.starts_with("impl")) {
            // Blocks of a trait have ` for ` before the type.
            inside = !line.contains(" for Builder<");
            let component = component.trim_end_matches([' ', '{']).strip_suffix('>').unwrap_or(component);
            found.extend(inside.then(|| (component.to_owned(), Vec::new())));
        }
        inside &= line != "}";
        let name = line.strip_prefix("    pub fn ").filter(|_| inside).and_then(|rest| rest.split(['(', '<']).next());
        if let (Some(name), Some((_, methods))) = (name, found.last_mut()) {
            methods.push(name.to_owned());
        }
    }
    found
}

/// Methods of all builders, of which there is one each.
fn common_methods() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("src/ground/build.rs")).unwrap();
    blocks(&text).into_iter().flat_map(|(_, methods)| methods).collect()
}

/// Methods of builders that links of this text name by `Builder::`.
fn linked_methods(text: &str) -> Vec<&str> {
    let targets = ["](", "][", "]: "].into_iter().flat_map(|mark| text.split(mark).skip(1));
    let paths = targets.filter_map(|target| target.split([')', ']', '\n', ' ']).next());
    let ours = paths.filter_map(|path| path.strip_prefix("crate::").unwrap_or(path).strip_prefix("Builder::"));
    ours.filter_map(|method| method.rsplit("::").next()).collect()
}

#[test]
fn a_link_to_a_method_of_one_builder_leads_to_its_component() {
    // Rustdoc shows the builders of all components on one page, and takes a link to a method of several to the first.
    let (common, mut found) = (common_methods(), Vec::new());
    assert!(common.contains("clock") && common.contains("name") && common.len() < 8, "{common:?}");
    let pages = all_pages().into_iter().map(|page| {
        let text = fs::read_to_string(root().join(&page.path)).unwrap();
        (page.path, text)
    });
    let of_src = texts().into_iter().map(|(path, text)| {
        let docs = text.lines().filter(|line| line.trim_start().starts_with("//"));
        (format!("src/{path}"), docs.collect::<Vec<_>>().join("\n"))
    });
    for (path, text) in pages.chain(of_src) {
        let wrong = linked_methods(&text).into_iter().filter(|method| !common.contains(*method));
        found.extend(wrong.map(|method| format!("{path}: `{method}`: link to the `builder` of the component")));
    }
    assert!(found.is_empty(), "{} links:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_builder_of_each_component_lists_its_own_methods() {
    let (texts, mut found, mut seen) = (texts(), Vec::new(), 0);
    let docs = |component: &str| {
        let is_of = |line: &str| {
            let own = line.strip_prefix("impl").filter(|rest| !rest.contains(" for ") && !rest.contains("Builder<"));
            let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric());
            own.is_some_and(|own| {
                own.match_indices(&format!(" {component}")).any(|(at, found)| ends(&own[at + found.len()..]))
            })
        };
        texts.iter().find_map(|(_, text)| {
            let (mut inside, mut docs) = (false, String::new());
            text.lines().find_map(|line| {
                inside = (inside || is_of(line)) && line != "}";
                match line.trim_start().strip_prefix("///") {
                    Some(doc) => docs += doc,
                    None if inside && line.starts_with("    pub fn builder") => return Some(docs.clone()),
                    None => docs.clear(),
                }
                None
            })
        })
    };
    let all = texts.iter().filter(|(path, _)| path != "ground/build.rs").flat_map(|(_, text)| blocks(text));
    for (component, methods) in all {
        seen += 1;
        let block = format!("impl-Builder<{component}>").replace('<', "%3C").replace('>', "%3E").replace(", ", ",+");
        let docs = docs(component.split('<').next().unwrap()).unwrap_or_default();
        if !docs.contains(&format!("(crate::Builder#{block})")) {
            found.push(format!("{component}::builder does not lead to crate::Builder#{block}"));
        }
        let missing = methods.iter().filter(|method| !docs.contains(&format!("`{method}`")));
        found.extend(missing.map(|method| format!("{component}::builder does not name `{method}`")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(seen > 20, "{seen}");
}

/// Pages of the built documentation below a folder, by their path there, with `/`.
fn built_pages(folder: &Path, below: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            built_pages(&path, &format!("{name}/"), found);
        } else if name.ends_with(".html") {
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Run after `cargo doc --no-deps --all-features`, whose files it reads. Rustdoc checks that an item exists, and no anchor.
#[test]
#[ignore = "needs the built documentation"]
fn every_link_between_pages_of_the_documentation_leads_to_an_anchor_there() {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut pages = BTreeMap::new();
    built_pages(&target.join("doc/steadfast"), "", &mut pages);
    let between = |text: &'_ str, mark: &'static str| -> Vec<String> {
        text.split(mark).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
    };
    let anchors: BTreeMap<_, BTreeSet<_>> =
        pages.iter().map(|(path, text)| (path.as_str(), between(text, " id=\"").into_iter().collect())).collect();
    let (mut found, mut seen) = (BTreeSet::new(), 0);
    for (path, text) in &pages {
        for link in between(text, " href=\"").iter().filter(|link| !link.contains("://") && !link.contains("/src/")) {
            let Some((file, anchor)) = link.split_once('#').filter(|(_, anchor)| !anchor.is_empty()) else { continue };
            let mut at: Vec<_> = path.split('/').collect();
            at.pop();
            for part in file.split('/') {
                match part {
                    ".." => drop(at.pop()),
                    "." => {}
                    part => at.push(part),
                }
            }
            let file = if file.is_empty() { path.clone() } else { at.join("/") };
            seen += 1;
            // Rustdoc computes bounds of auto traits, and names in them also a type that is hidden from its page.
            let is_hidden = anchor == "associatedtype.Spec";
            // Pages of other crates are not built.
            if !is_hidden && anchors.get(file.as_str()).is_some_and(|anchors| !anchors.contains(anchor)) {
                found.insert(format!("{path}: {link}"));
            }
        }
    }
    assert!(found.is_empty(), "{} of {seen}:\n{}", found.len(), found.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(seen > 10_000, "{seen}");
}

#[test]
fn links_to_methods_of_builders_are_found_in_every_notation() {
    for text in [
        "[x](crate::Builder::poll).",
        "[`x`](Builder::poll)",
        "| [x][crate::Builder::poll] |",
        "[x]: crate::Builder::poll",
        "[x](Builder::<Filter>::poll) y",
    ] {
        assert_eq!(linked_methods(text), ["poll"], "{text}");
    }
    assert!(linked_methods("[x](crate::Builder#anchor), `Builder::poll`, [y](crate::OtherBuilder::poll)").is_empty());
    let text =
        "impl<T: Send> Builder<Scheduler<T>> {\n    pub fn rows(self) {}\n    fn own(self) {}\n}\n    pub fn no() {}";
    assert_eq!(blocks(text), [("Scheduler<T>".to_owned(), vec!["rows".to_owned()])]);
}

#[test]
fn the_check_of_links_finds_what_it_is_for() {
    let text = "# A `b` c\n[x](no.md), [y](crate::retry), ![z](../docs/none.svg), `[c](code.md)`\n\n```\n[d](code.md)\n```\n\
        [e][label], [f](#a-b-c), [g](#d), [h]\n\n[label]: https://docs.rs/steadfast/latest/steadfast/retry/struct.Wrong.html";
    let page = Page::new("src/none.md", text);
    assert_eq!(page.targets(), ["no.md", "crate::retry", "../docs/none.svg", "#a-b-c", "#d"]);
    assert_eq!(page.labels(), ["label", "h"]);
    assert_eq!(page.definitions().len(), 1);
    assert!(page.anchors.contains("a-b-c") && page.anchors.len() == 1);
    assert_eq!(slug("Sagas, topics and *engines*"), "sagas-topics-and-engines");
    let items = Items::read();
    assert!(items.has("retry/struct.Retry.html#method.builder") && items.has("retry/index.html#defaults"));
    assert!(!items.has("retry/struct.Wrong.html") && !items.has("retry/index.html#no-such-heading"));
    assert!(!items.has("retry/struct.Retry.html#method.no_such_method") && !items.has("nowhere/index.html"));
    for target in ["no.md", "crate::retry", "../docs/none.svg"] {
        assert!(dead(&page, target, &items, &packaged()).is_some(), "{target}");
    }
    let readme = Page::new("README.md", "");
    assert!(dead(&readme, &format!("{SOURCE}tests/language.rs"), &items, &packaged()).is_some());
    assert!(dead(&readme, &format!("{SOURCE}CHANGELOG.md"), &items, &packaged()).is_none());
}
