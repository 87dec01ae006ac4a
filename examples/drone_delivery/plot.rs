//! The run as a picture: throughput, latency, calls and breaker states over time, as SVG.
use std::{
    fmt::{self, Write},
    time::Duration,
};

use steadfast::circuit_breaker::State;

use crate::{
    args::Faults,
    figures::{Quantiles, grouped},
    record::{End, Inner},
    report::Report,
    services::Service,
};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 712.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 24.0;
/// Horizontal bounds of the panels.
const TOP: f64 = 58.0;
const BOTTOM: f64 = 682.0;

const INK: &str = "#1f2933";
const FAINT: &str = "#66727f";
const GRID: &str = "#dfe3e8";
const GOOD: &str = "#3e7cb1";
const BAD: &str = "#b8321f";
const OPEN: &str = "#f7cfc5";
const PROBING: &str = "#f7dc8f";
const SHADE: &str = "#f5f1e8";

/// Draws a run.
pub fn draw(report: &Report) -> String {
    let mut svg = String::new();
    // Writing to a `String` does not fail.
    let _ = Plot::new(report).write(&mut svg);
    svg
}

struct Plot<'a> {
    report: &'a Report,
    record: &'a Inner,
    /// The end of the time axis: a multiple of 8 s, so that two runs of one kind share their axis.
    end: Duration,
    /// Duration of one bar.
    bucket: Duration,
    /// Maximum of the axes of calls and requests per second.
    most: f64,
}

impl<'a> Plot<'a> {
    fn new(report: &'a Report) -> Self {
        let seconds = report.elapsed.as_secs_f64();
        let end = match seconds {
            s if s < 2.0 => report.elapsed.max(Duration::from_millis(10)),
            s => Duration::from_secs((s / 8.0).ceil() as u64 * 8),
        };
        let bucket = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map(Duration::from_millis);
        let bucket = bucket.into_iter().find(|b| end <= *b * 80).unwrap_or(end / 80);
        let mut plot = Self { report, record: &report.record, end, bucket, most: 0.0 };
        let requests = plot.bars(plot.record.done.iter().map(|d| (d.at, true)));
        let calls = Service::ALL.into_iter().flat_map(|service| plot.calls(service));
        let most = requests.into_iter().chain(calls).map(|(good, bad)| good + bad).fold(0.0, f64::max);
        // With a rate limit the axis follows it, so that two runs of one kind share the axis: a service gets at most twice the
        // rate in calls.
        plot.most = nice(most.max(report.args.rate().map_or(0.0, |rate| f64::from(rate) * 2.5)));
        plot
    }

    fn x(&self, at: Duration) -> f64 {
        LEFT + at.min(self.end).as_secs_f64() / self.end.as_secs_f64() * (WIDTH - LEFT - RIGHT)
    }

    /// Draws events per second in each bucket: good and bad ones.
    fn bars(&self, of: impl Iterator<Item = (Duration, bool)>) -> Vec<(f64, f64)> {
        let mut bars = vec![(0.0, 0.0); self.bucket_of(self.end) + 1];
        let last = bars.len() - 1;
        for (at, good) in of {
            let bar = &mut bars[self.bucket_of(at).min(last)];
            *if good { &mut bar.0 } else { &mut bar.1 } += 1.0 / self.bucket.as_secs_f64();
        }
        bars
    }

    fn bucket_of(&self, at: Duration) -> usize {
        (at.as_nanos() / self.bucket.as_nanos().max(1)) as usize
    }

    fn calls(&self, service: Service) -> Vec<(f64, f64)> {
        self.bars(self.record.calls[service as usize].iter().map(|c| (c.at, c.ok)))
    }

    fn write(&self, out: &mut impl Write) -> fmt::Result {
        let args = &self.report.args;
        let how = if args.unprotected { "unprotected" } else { "protected by steadfast" };
        let title = match args.faults {
            Faults::None => format!("No faults, {how}"),
            Faults::Flaky => format!("Flaky services, seed {}: {how}", args.seed),
            Faults::Storm => format!("Storm, seed {}: {how}", args.seed),
        };
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">"#
        )?;
        writeln!(out, r#"<title>{title}</title>"#)?;
        rect(out, 0.0, 0.0, WIDTH, HEIGHT, "white")?;
        writeln!(out, r#"<text x="{LEFT}" y="25" font-size="17" font-weight="600">{title}</text>"#)?;
        let (scheduled, rejected) = (grouped(self.report.scheduled()), grouped(self.report.rejected()));
        let (lost, took) = (grouped(self.report.lost()), self.report.elapsed.as_secs_f64());
        let classes = format!("{scheduled} scheduled, {rejected} rejected, {lost} lost, in {took:.1} s");
        label(out, WIDTH - RIGHT, 25.0, "end", INK, 13, &classes)?;
        self.faults(out)?;
        self.throughput(out, 86.0, 124.0)?;
        self.latency(out, 252.0, 112.0)?;
        self.lanes(out, 408.0)?;
        self.time_axis(out, BOTTOM + 18.0)?;
        writeln!(out, "</svg>")
    }

    /// Draws the planned failures in the background.
    fn faults(&self, out: &mut impl Write) -> fmt::Result {
        for (plan, what) in [(self.report.plan.crash, "is down"), (self.report.plan.brownout, "mostly fails")] {
            let Some((service, from, lasts)) = plan else { continue };
            if from < self.end {
                let x = self.x(from);
                rect(out, x, TOP - 16.0, self.x(from + lasts) - x, BOTTOM - TOP + 16.0, SHADE)?;
                label(out, x + 5.0, TOP - 4.0, "start", FAINT, 11, &format!("{service} {what}"))?;
            }
        }
        Ok(())
    }

    fn throughput(&self, out: &mut impl Write, top: f64, height: f64) -> fmt::Result {
        self.title(out, top, "requests ended, per second", &[(GOOD, "scheduled or rejected"), (BAD, "lost")])?;
        for tick in [0.0, 0.5, 1.0] {
            self.grid(out, top + height * (1.0 - tick), &grouped((self.most * tick) as u64))?;
        }
        let bars = self.bars(self.record.done.iter().map(|d| (d.at, !matches!(d.end, End::Lost(_)))));
        self.draw_bars(out, &bars, top, height)
    }

    /// Draws good events from below, and bad ones above them; a single event is at least a hairline.
    fn draw_bars(&self, out: &mut impl Write, bars: &[(f64, f64)], top: f64, height: f64) -> fmt::Result {
        for (i, (good, bad)) in bars.iter().enumerate() {
            let x = self.x(self.bucket * i as u32);
            let width = self.x(self.bucket * (i as u32 + 1)) - x;
            let mut base = top + height;
            for (color, n) in [(GOOD, *good), (BAD, *bad)] {
                if n > 0.0 && width > 0.0 {
                    let h = (n / self.most * height).max(1.0);
                    base -= h;
                    rect(out, x + 0.3, base, (width - 0.6).max(0.3), h, color)?;
                }
            }
        }
        Ok(())
    }

    fn latency(&self, out: &mut impl Write, top: f64, height: f64) -> fmt::Result {
        self.title(out, top, "time of an HTTP call", &[(GOOD, "median"), (BAD, "99th percentile")])?;
        // From 1 ms to 10 s, each decade as high as the next.
        let y = |d: Duration| top + height * (1.0 - (d.as_secs_f64().clamp(1e-3, 10.0).log10() + 3.0) / 4.0);
        for (d, name) in [(1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1000, "1 s"), (10_000, "10 s")] {
            self.grid(out, y(Duration::from_millis(d)), name)?;
        }
        let mut took: Vec<Vec<Duration>> = vec![Vec::new(); self.bucket_of(self.end) + 1];
        let last = took.len() - 1;
        for call in self.record.calls.iter().flatten() {
            took[self.bucket_of(call.at).min(last)].push(call.took);
        }
        let points: Vec<Option<(f64, Quantiles)>> = (0_u32..)
            .zip(took)
            .map(|(i, took)| {
                let x = self.x(self.bucket * i + self.bucket / 2);
                (!took.is_empty()).then(|| (x, Quantiles::of(took.into_iter())))
            })
            .collect();
        let medians: Vec<_> = points.iter().map(|point| point.map(|(x, q)| (x, y(q.p50)))).collect();
        let p99s: Vec<_> = points.iter().map(|point| point.map(|(x, q)| (x, y(q.p99)))).collect();
        lines(out, GOOD, &medians)?;
        lines(out, BAD, &p99s)
    }

    /// Draws a lane for each service: its calls, over the states of its breaker.
    fn lanes(&self, out: &mut impl Write, top: f64) -> fmt::Result {
        let title = format!("calls per second, each lane {} high", grouped(self.most as u64));
        let legend = [(GOOD, "calls"), (BAD, "failed calls"), (OPEN, "breaker open"), (PROBING, "probing")];
        self.title(out, top, &title, if self.report.args.unprotected { &legend[..2] } else { &legend })?;
        let pitch = (BOTTOM - top) / 5.0;
        let height = pitch - 8.0;
        for (i, service) in Service::ALL.into_iter().enumerate() {
            let y = top + pitch * i as f64;
            label(out, LEFT - 8.0, y + height / 2.0 + 4.0, "end", INK, 12, service.as_str())?;
            let turns = &self.record.turns[service as usize];
            for (n, turn) in turns.iter().enumerate() {
                let color = match turn.state {
                    State::Open | State::Isolated => OPEN,
                    State::HalfOpen => PROBING,
                    State::Closed => continue,
                };
                let x = self.x(turn.at);
                let to = self.x(turns.get(n + 1).map_or(self.report.elapsed, |next| next.at));
                rect(out, x, y, (to - x).max(0.8), height, color)?;
            }
            writeln!(
                out,
                r#"<rect x="{LEFT}" y="{y:.1}" width="{}" height="{height:.1}" fill="none" stroke="{GRID}"/>"#,
                WIDTH - LEFT - RIGHT
            )?;
            self.draw_bars(out, &self.calls(service), y, height)?;
        }
        Ok(())
    }

    fn title(&self, out: &mut impl Write, top: f64, title: &str, legend: &[(&str, &str)]) -> fmt::Result {
        let y = top - 9.0;
        writeln!(out, r#"<text x="{LEFT}" y="{y}" font-weight="600">{title}</text>"#)?;
        let mut x = WIDTH - RIGHT;
        for (color, name) in legend.iter().rev() {
            x -= name.len() as f64 * 6.4; // as wide as the widest of the usual fonts
            label(out, x, y, "start", INK, 11, name)?;
            rect(out, x - 14.0, y - 9.0, 10.0, 10.0, color)?;
            x -= 28.0;
        }
        Ok(())
    }

    fn grid(&self, out: &mut impl Write, y: f64, name: &str) -> fmt::Result {
        writeln!(out, r#"<line x1="{LEFT}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="{GRID}"/>"#, WIDTH - RIGHT)?;
        label(out, LEFT - 8.0, y + 4.0, "end", FAINT, 11, name)
    }

    fn time_axis(&self, out: &mut impl Write, y: f64) -> fmt::Result {
        let seconds = self.end.as_secs_f64();
        let step = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0].into_iter().find(|s| seconds / s <= 16.0).unwrap_or(60.0);
        for i in 0..=(seconds / step) as u32 {
            let at = step * f64::from(i);
            // Rounded, because 3 * 0.1 would print as 0.30000000000000004.
            let at = (at * 10.0).round() / 10.0;
            label(out, self.x(Duration::from_secs_f64(at)), y, "middle", FAINT, 11, &format!("{at} s"))?;
        }
        Ok(())
    }
}

fn rect(out: &mut impl Write, x: f64, y: f64, width: f64, height: f64, color: &str) -> fmt::Result {
    writeln!(out, r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}"/>"#)
}

/// Draws a line through neighbouring points; gaps remain, and a single point is a dot.
fn lines(out: &mut impl Write, color: &str, points: &[Option<(f64, f64)>]) -> fmt::Result {
    for piece in points.split(Option::is_none).filter(|piece| !piece.is_empty()) {
        if let [Some((x, y))] = piece {
            writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="1.2" fill="{color}"/>"#)?;
            continue;
        }
        let points: Vec<_> = piece.iter().flatten().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        writeln!(
            out,
            r#"<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6" stroke-linejoin="round"/>"#
        )?;
    }
    Ok(())
}

fn label(out: &mut impl Write, x: f64, y: f64, anchor: &str, color: &str, size: u32, text: &str) -> fmt::Result {
    writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{text}</text>"#
    )
}

/// Returns the next round number.
fn nice(n: f64) -> f64 {
    let unit = 10f64.powf(n.max(1.0).log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].into_iter().map(|f| f * unit).find(|top| *top >= n).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_leads_through_times_without_calls() {
        let mut svg = String::new();
        let at = |x: f64| Some((x, 10.0));
        lines(&mut svg, "red", &[None, at(1.0), at(2.0), None, None, at(5.0), None, at(7.0), at(8.0)]).unwrap();
        let drawn: Vec<_> = svg.lines().map(|line| line.split(" fill").next().unwrap()).collect();
        let piece = |points| format!(r#"<polyline points="{points}""#);
        let dot = r#"<circle cx="5.0" cy="10.0" r="1.2""#.to_owned();
        assert_eq!(drawn, [piece("1.0,10.0 2.0,10.0"), dot, piece("7.0,10.0 8.0,10.0")]);
    }
}
