//! The results as bars: throughput of each contender, one panel per pattern, one thread, on a
//! logarithmic scale.

use super::Results;
use super::contender::Contender;
use crate::access::Pattern;
use plotters::prelude::*;
use std::path::Path;

const PANEL: (u32, u32) = (420, 420);

pub fn draw(path: &Path, results: &Results) -> anyhow::Result<()> {
    let mut patterns: Vec<Pattern> = results.rows.iter().map(|r| r.cell.pattern).collect();
    patterns.sort_unstable();
    patterns.dedup();
    let size = (PANEL.0 * patterns.len().max(1) as u32, PANEL.1);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE).map_err(said)?;
    let title = format!(
        "accesses per second, {} MiB ({} CPUs, {})",
        results.bytes >> 20,
        results.machine.cpus,
        results.machine.kernel
    );
    let root = root.titled(&title, ("sans-serif", 18)).map_err(said)?;
    for (area, pattern) in root.split_evenly((1, patterns.len().max(1))).iter().zip(patterns) {
        panel(area, results, pattern)?;
    }
    root.present().map_err(said)
}

/// Bars of one pattern: contenders in their order, each with one bar per resident share.
fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    results: &Results,
    pattern: Pattern,
) -> anyhow::Result<()> {
    let rows: Vec<_> = results.rows.iter().filter(|r| r.cell.pattern == pattern && r.cell.threads == 1).collect();
    let mut order: Vec<_> = rows.iter().map(|r| (r.contender, std::cmp::Reverse(r.cell.resident_percent), r)).collect();
    order.sort_by_key(|(contender, resident, _)| (*contender, *resident));
    let most = rows.iter().map(|r| r.median.ops_per_s).fold(10.0, f64::max) * 3.0;
    let least = rows.iter().map(|r| r.median.ops_per_s).fold(f64::MAX, f64::min).clamp(1.0, most / 10.0) / 3.0;
    let mut chart = ChartBuilder::on(area)
        .caption(pattern.name(), ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(80)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..order.len() as f64, (least..most).log_scale())
        .map_err(said)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .x_labels(0)
        .y_label_formatter(&|v| {
            if *v >= 1e6 {
                format!("{:.0} M", v / 1e6)
            } else if *v >= 1e3 {
                format!("{:.0} k", v / 1e3)
            } else {
                format!("{v:.0}")
            }
        })
        .draw()
        .map_err(said)?;
    let vertical = ("sans-serif", 12).into_font().transform(FontTransform::Rotate90);
    for (i, (contender, _, row)) in order.iter().enumerate() {
        let (left, right, ops) = (i as f64 + 0.15, i as f64 + 0.85, row.median.ops_per_s);
        let bar = Rectangle::new([(left, least), (right, ops)], colour(*contender).filled());
        let label = format!("{:.0} k", ops / 1e3);
        chart.draw_series([bar]).map_err(said)?;
        chart.draw_series([Text::new(label, (left, ops * 1.25), ("sans-serif", 10))]).map_err(said)?;
        let name = match contender {
            Contender::Ram => "ram".to_owned(),
            other if row.held => format!("{} {}%", other.name(), row.cell.resident_percent),
            other => format!("{} >{}%", other.name(), row.cell.resident_percent),
        };
        let (x, y) = chart.backend_coord(&(i as f64 + 0.62, least));
        let (dx, dy) = area.get_base_pixel();
        area.draw(&Text::new(name, (x - dx, y - dy + 6), vertical.clone())).map_err(said)?;
    }
    Ok(())
}

pub(super) fn colour(contender: Contender) -> RGBColor {
    match contender {
        Contender::Ram => RGBColor(150, 150, 150),
        Contender::Floor => RGBColor(190, 190, 120),
        Contender::Readahead => RGBColor(215, 215, 160),
        Contender::AnnexShm => RGBColor(30, 110, 190),
        Contender::AnnexTcp => RGBColor(110, 170, 230),
        Contender::Client => RGBColor(60, 160, 110),
        Contender::Zram => RGBColor(220, 140, 60),
        Contender::Disk => RGBColor(190, 80, 60),
        Contender::Umap => RGBColor(140, 100, 170),
    }
}

pub(super) fn said(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}
