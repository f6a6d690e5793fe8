alignas(16) unsigned char emulation_shared_end[16];  // see scheduler.cpp
