//! Lines: how much slower with less local memory, and how long faults take.

use super::chart::{colour, said};
use super::contender::Contender;
use super::plan::Cell;
use super::programs::{self, place::Kind, program::Program};
use super::results::Results;
use crate::access::Pattern;
use crate::access::measured::CURVE;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const PANEL: (u32, u32) = (420, 360);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A contender's points, in the order in which they are joined.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Slow-down of zipf and random reads, one thread, against the share that is local.
pub fn shares(path: &Path, results: &Results) -> anyhow::Result<()> {
    let panels = [Pattern::Zipf, Pattern::Random].map(|pattern| {
        let full = Cell { pattern, threads: 1, resident_percent: 100 };
        let native = results.row(Contender::Ram, full).map(|row| row.median.ops_per_s);
        let line = |contender: &Contender| {
            let rows = results
                .rows
                .iter()
                .filter(|row| row.contender == *contender && row.cell.pattern == pattern && row.cell.threads == 1);
            let mut points: Vec<(f64, f64)> = rows
                .filter_map(|row| Some((row.cell.resident_percent as f64, native? / row.median.ops_per_s)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let whole = (!points.is_empty()).then_some((100.0, 1.0));
            points.extend(whole);
            Line { name: contender.name().into(), colour: colour(*contender), points }
        };
        let others: Vec<&Contender> = Contender::ALL.iter().filter(|c| **c != Contender::Ram).collect();
        (pattern.name().to_owned(), others.into_iter().map(line).collect())
    });
    draw_shares(path, "times slower than all in memory, against the percentage that is local", panels.into())
}

/// The same for programs.
pub fn programs(path: &Path, report: &programs::Report) -> anyhow::Result<()> {
    let panel = |program: &Program| {
        let line = |(kind, contender): (Kind, Contender)| {
            let rows = report.rows.iter().filter(|row| row.program == *program && row.place == kind);
            let mut points: Vec<(f64, f64)> = rows
                .filter_map(|row| Some((row.local_percent as f64, 1.0 / report.speed(row)?.median)))
                .filter(|(_, slower)| slower.is_finite())
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let whole = (!points.is_empty()).then_some((100.0, 1.0));
            points.extend(whole);
            Line { name: kind.name().into(), colour: colour(contender), points }
        };
        let lines = [(Kind::AnnexShm, Contender::AnnexShm), (Kind::Zram, Contender::Zram)].map(line);
        (program.name().to_owned(), lines.into())
    };
    let ran = Program::ALL.iter().filter(|program| report.rows.iter().any(|row| row.program == **program));
    draw_shares(path, "times slower than natively, against the percentage that is local", ran.map(panel).collect())
}

fn draw_shares(path: &Path, title: &str, panels: Vec<(String, Vec<Line>)>) -> anyhow::Result<()> {
    draw(path, title, panels, |area, name, lines| {
        let most = lines.iter().flat_map(|line| &line.points).map(|(_, slower)| *slower).fold(2.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(name, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(48)
            .build_cartesian_2d(20.0..104.0, (0.8..most * 1.3).log_scale())
            .map_err(said)?;
        let labels = |v: &f64| if *v >= 10.0 { format!("{v:.0}") } else { format!("{v:.1}") };
        chart.configure_mesh().x_labels(5).max_light_lines(1).y_label_formatter(&labels).draw().map_err(said)?;
        for line in lines {
            let colour = line.colour;
            let dots = line.points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
            chart.draw_series(dots).map_err(said)?;
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
            chart.draw_series(series).map_err(said)?.label(&line.name).legend(legend);
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// How many of the misses were served within which time: random reads at a quarter, one thread.
pub fn faults(path: &Path, results: &Results) -> anyhow::Result<()> {
    let panels = [Pattern::Random, Pattern::Zipf].map(|pattern| {
        let rows = results.rows.iter().filter(|row| {
            let Cell { pattern: of, threads, resident_percent } = row.cell;
            (of, threads, resident_percent) == (pattern, 1, 25) && row.contender != Contender::Ram
        });
        let line = |row: &super::results::Row| Line {
            name: row.contender.name().into(),
            colour: colour(row.contender),
            points: row.median.miss_curve_us.iter().copied().zip(CURVE.map(|quantile| quantile * 100.0)).collect(),
        };
        let mut lines: Vec<Line> = rows.map(line).collect();
        let bare: Vec<_> = results.floors.iter().map(|floors| &floors.fault.miss_curve_us).collect();
        if bare.iter().all(|curve| curve.len() == CURVE.len()) && !bare.is_empty() {
            let middle = |nth: usize| super::ratio::middle(bare.iter().map(|curve| curve[nth]).collect());
            let points = CURVE.iter().enumerate().map(|(nth, quantile)| (middle(nth), quantile * 100.0)).collect();
            lines.push(Line { name: "bare fault".into(), colour: BLACK, points });
        }
        (format!("{} at 25 %", pattern.name()), lines)
    });
    draw(path, "percentage of misses served within so many µs", panels.into(), |area, name, lines| {
        let most = lines.iter().flat_map(|line| &line.points).map(|(us, _)| *us).fold(10.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(name, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(48)
            .build_cartesian_2d((3.0..most * 1.2).log_scale(), 0.0..100.0)
            .map_err(said)?;
        chart.configure_mesh().max_light_lines(1).x_label_formatter(&|v| format!("{v:.0}")).draw().map_err(said)?;
        for line in lines {
            let colour = line.colour;
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            let legend = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
            chart.draw_series(series).map_err(said)?.label(&line.name).legend(legend);
        }
        legend(&mut chart, SeriesLabelPosition::LowerRight)
    })
}

/// Panels beside each other under a title.
fn draw(
    path: &Path,
    title: &str,
    mut panels: Vec<(String, Vec<Line>)>,
    panel: impl Fn(&Area<'_>, &str, &[Line]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for (_, lines) in &mut panels {
        lines.retain(|line| !line.points.is_empty());
    }
    panels.retain(|(_, lines)| !lines.is_empty());
    let count = panels.len().max(1);
    let root = SVGBackend::new(path, (PANEL.0 * count as u32, PANEL.1)).into_drawing_area();
    root.fill(&WHITE).map_err(said)?;
    let root = root.titled(title, ("sans-serif", 16)).map_err(said)?;
    for (area, (name, lines)) in root.split_evenly((1, count)).iter().zip(&panels) {
        panel(area, name, lines)?;
    }
    root.present().map_err(said)
}

fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    at: SeriesLabelPosition,
) -> anyhow::Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let mut labels = chart.configure_series_labels();
    labels.position(at).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).label_font(("sans-serif", 11));
    labels.draw().map_err(said)
}
