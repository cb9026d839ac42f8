//! Summary figures of many measurements.

/// Measurements in milliseconds.
#[derive(Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    pub fn add(&mut self, millis: f64) {
        self.0.push(millis);
        self.0.sort_by(f64::total_cmp);
    }

    pub fn merge(&mut self, other: Figures) {
        other.0.into_iter().for_each(|millis| self.add(millis));
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The percentile: the smallest measurement that at least `percent` percent of all do not exceed.
    pub fn percent(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.percent(50)
    }

    pub fn least(&self) -> f64 {
        self.percent(0)
    }

    pub fn most(&self) -> f64 {
        self.percent(100)
    }
}
