// A device for tests, as torch asks one from C++: two of them, each with a clock that stands still until
// work is given to it. Its events tell the time of that clock; a wait is counted.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace {

constexpr int kDevices = 2;
std::atomic<double> milliseconds[kDevices];
std::atomic<long> waits{0};
thread_local c10::DeviceIndex current = 0;

struct ToyGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(type(), current); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new double;
    *static_cast<double*>(*event) = milliseconds[stream.device_index()];
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  void synchronizeEvent(void*) const override { ++waits; }
  void synchronizeDevice(c10::DeviceIndex) const override { ++waits; }
  double elapsedTime(void* one, void* other, c10::DeviceIndex) const override {
    return *static_cast<double*>(other) - *static_cast<double*>(one);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, ToyGuard)

}  // namespace

extern "C" void toy_work(int device, double spent) { milliseconds[device] = milliseconds[device] + spent; }
extern "C" long toy_waits() { return waits; }
